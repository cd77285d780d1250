// What a component shows of the server: fetched when it appears and when its address changes.

import { useCallback, useEffect, useState } from "react";
import { ApiError, get, type Query } from "./http";

export interface Resource<T> {
  data: T | null;
  error: ApiError | null;
  reload: () => void;
  set: (change: (data: T) => T) => void;
}

/** A null path fetches nothing. The old data stays until the new arrives. */
export function useResource<T>(path: string | null, query?: Query): Resource<T> {
  const [data, setData] = useState<T | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [round, setRound] = useState(0);
  const key = JSON.stringify(query ?? {});

  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    get<T>(path, JSON.parse(key) as Query, abort.signal).then(
      (answer) => {
        setData(answer);
        setError(null);
      },
      (reason: unknown) => {
        if (abort.signal.aborted) return;
        if (!(reason instanceof ApiError)) throw reason;
        setError(reason);
      },
    );
    return () => abort.abort();
  }, [path, key, round]);

  const reload = useCallback(() => setRound((value) => value + 1), []);
  const set = useCallback(
    (change: (value: T) => T) => setData((value) => (value === null ? null : change(value))),
    [],
  );
  return { data, error, reload, set };
}
