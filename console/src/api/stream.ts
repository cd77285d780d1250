// Server-sent events. The browser connects again by itself and says which line it had last.

export type Handlers = Record<string, (data: string, id: string) => void>;

/** Calls a handler per named event until the function that it returns is called. */
export function listen(url: string, handlers: Handlers): () => void {
  const source = new EventSource(url);
  for (const [name, handler] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => {
      if (event instanceof MessageEvent) handler(String(event.data), event.lastEventId);
    });
  }
  return () => source.close();
}
