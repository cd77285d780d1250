// Short messages in the corner: what failed, and what was done that cannot be seen.

import { create } from "zustand";
import { ApiError } from "../api/http";

interface Notice {
  id: number;
  kind: "error" | "done";
  text: string;
  more: { hint: string | null; code: string } | null;
}

interface Notices {
  list: Notice[];
  add: (kind: Notice["kind"], text: string, more?: Notice["more"]) => void;
  drop: (id: number) => void;
}

let last = 0;
const DONE_SECONDS = 4;

const useNotices = create<Notices>()((set, state) => ({
  list: [],
  add: (kind, text, more = null) => {
    const id = ++last;
    // An error stays until it is closed, but the same one stands there once.
    const rest = state().list.filter((notice) => notice.text !== text);
    set({ list: [...rest, { id, kind, text, more }].slice(-4) });
    if (kind === "done") window.setTimeout(() => state().drop(id), DONE_SECONDS * 1000);
  },
  drop: (id) => set({ list: state().list.filter((notice) => notice.id !== id) }),
}));

export function done(text: string): void {
  useNotices.getState().add("done", text);
}

/** Says what somebody must know who has got less than was asked for. */
export function warn(text: string): void {
  useNotices.getState().add("error", text);
}

/** Shows why something failed; what is no answer of the server is a bug and is thrown on. */
export function failed(error: unknown): void {
  if (!(error instanceof ApiError)) throw error;
  useNotices.getState().add("error", error.message, error);
}

/** Takes back what no longer holds. */
export function withdraw(text: string): void {
  const { list, drop } = useNotices.getState();
  for (const notice of list) if (notice.text === text) drop(notice.id);
}

/** Runs an action of the user and shows its failure. */
export function attempt(action: () => Promise<unknown>): void {
  action().catch(failed);
}

export function NoticeList() {
  const { list, drop } = useNotices();
  return (
    <div className="notices" role="status" aria-live="polite">
      {list.map((notice) => (
        <div key={notice.id} className={`notice ${notice.kind}`}>
          <div>
            <p>{notice.text}</p>
            {notice.more?.hint && <p className="muted">{notice.more.hint}</p>}
            {notice.more && <p className="muted mono">{notice.more.code}</p>}
          </div>
          <button className="icon" aria-label="Close message" onClick={() => drop(notice.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
