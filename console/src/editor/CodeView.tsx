// The network as Python code, as it is now; the selected layer's line is marked.

import { useEffect, useState } from "react";
import { ApiError, post } from "../api/http";
import { done } from "../app/notices";
import { Failure, Loading } from "../ui/parts";
import { differs } from "./analysis";
import { useDocument, useEditor } from "./store";

interface Code {
  text: string;
  lines: Record<string, Record<string, number>>;
}

const PAUSE_MS = 150;

export function CodeView() {
  const document = useDocument();
  const network = useEditor((state) => state.network);
  const selected = useEditor((state) => state.selected);
  const [code, setCode] = useState<Code | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [shown, setShown] = useState(document);
  if (document !== shown && differs(document, shown)) setShown(document);

  useEffect(() => {
    let isCurrent = true;
    const timer = window.setTimeout(() => {
      post<Code>("/code", { document: shown }).then(
        (answer) => isCurrent && (setCode(answer), setError(null)),
        (reason: unknown) => {
          if (!(reason instanceof ApiError)) throw reason;
          if (isCurrent) setError(reason);
        },
      );
    }, PAUSE_MS);
    return () => {
      isCurrent = false;
      window.clearTimeout(timer);
    };
  }, [shown]);

  if (error) return <Failure error={error} />;
  if (!code) return <Loading what="the code" />;
  const marked = new Set([...selected].map((id) => code.lines[network]?.[id]));
  return (
    <section className="section" aria-label="Python code">
      <header>
        <h2>Python</h2>
        <button
          onClick={() => {
            void navigator.clipboard.writeText(code.text).then(() => done("Copied."));
          }}
        >
          Copy
        </button>
      </header>
      <pre className="code" tabIndex={0}>
        {code.text.split("\n").map((line, index) => (
          <span key={index} className={marked.has(index + 1) ? "current" : undefined}>
            {line || " "}
          </span>
        ))}
      </pre>
    </section>
  );
}
