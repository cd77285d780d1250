// The end of what the training process printed; follows it while it runs.

import { useEffect, useRef } from "react";
import type { Trial } from "../api/records";
import { useResource } from "../api/resource";

const TAIL_LINES = 300;
const PERIOD_MS = 2000;

export function LogView({ trial }: { trial: Trial }) {
  const { data, reload } = useResource<{ text: string }>(`/trials/${trial.id}/log`, {
    tail: TAIL_LINES,
  });
  const box = useRef<HTMLPreElement>(null);
  const isRunning = trial.status === "running";
  useEffect(() => {
    reload();
    if (!isRunning) return;
    const timer = window.setInterval(reload, PERIOD_MS);
    return () => window.clearInterval(timer);
  }, [isRunning, reload]);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [data]);
  return (
    <pre className="log" ref={box} tabIndex={0} aria-label="Log">
      {data?.text || "Nothing was printed yet."}
    </pre>
  );
}
