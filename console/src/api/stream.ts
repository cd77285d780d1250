// Server-sent events, also from a server that was away meanwhile.

import { failed, withdraw } from "../app/notices";
import { unreachable } from "./http";

export type Handlers = Record<string, (data: string, id: string) => void>;

/** A server that ends a stream is there again at once. */
const PATIENCE_MS = 1500;
const RETRY_MS = 3000;

/** Calls a handler per named event until the function that it returns is called. */
export function listen(url: string, handlers: Handlers): () => void {
  let source: EventSource;
  let complaint = 0;
  let retry = 0;
  const connect = () => {
    source = new EventSource(url);
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (event instanceof MessageEvent) handler(String(event.data), event.lastEventId);
      });
    }
    source.onopen = () => {
      window.clearTimeout(complaint);
      complaint = 0;
      withdraw(unreachable().message);
    };
    source.onerror = () => {
      complaint ||= window.setTimeout(() => failed(unreachable()), PATIENCE_MS);
      // The browser tries again by itself, and says which line it had last, but not after a refusal.
      if (source.readyState === EventSource.CLOSED) retry = window.setTimeout(connect, RETRY_MS);
    };
  };
  connect();
  return () => {
    window.clearTimeout(complaint);
    window.clearTimeout(retry);
    source.close();
  };
}

/** The objects in the events of an answer, as they come. */
export async function* eventsOf<T>(answer: Response): AsyncGenerator<T> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data) as T;
    }
  }
}
