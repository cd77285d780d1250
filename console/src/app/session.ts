// What the page may do: of a console that only shows, what would change something is not shown.

import { get } from "../api/http";
import type { Session } from "../api/records";

/** Marks the page as read only where the server says so; styles hide what has the class "changes". */
export async function markSession(): Promise<void> {
  const session = await get<Session>("/session");
  if (session.read_only) document.documentElement.dataset.readOnly = "";
}
