// All errors and warnings of the document; a click leads to the layer.

import { useState } from "react";
import { networkOf, nodeOf } from "../graph/document";
import { useAnalysis, useProblems } from "./analysis";
import { fix } from "./commands";
import { useDocument, useEditor } from "./store";

export function Problems() {
  const all = useProblems();
  const error = useAnalysis((state) => state.error);
  const document = useDocument();
  const show = useEditor((state) => state.show);
  const [isOpen, setOpen] = useState(true);
  const problems = all.filter((problem) => problem.code !== "upstream");
  const errors = problems.filter((problem) => problem.severity === "error").length;
  const warnings = problems.length - errors;

  const whereOf = (network: string, id: string | null) => {
    const found = document.networks.some((other) => other.name === network);
    const node = id !== null && found ? nodeOf(networkOf(document, network), id) : undefined;
    return node ? `${network === document.networks[0]?.name ? "" : `${network} / `}${node.name}` : "";
  };
  return (
    <section className="problems" aria-label="Problems">
      <header>
        <button
          className="link"
          aria-expanded={isOpen && problems.length > 0}
          disabled={problems.length === 0}
          onClick={() => setOpen(!isOpen)}
        >
          Problems
        </button>
        {error ? (
          <span className="bad">{error.message}</span>
        ) : problems.length === 0 ? (
          <span className="good">none</span>
        ) : (
          <>
            {errors > 0 && <span className="bad">{errors} {errors === 1 ? "error" : "errors"}</span>}
            {warnings > 0 && (
              <span className="warn">
                {warnings} {warnings === 1 ? "warning" : "warnings"}
              </span>
            )}
          </>
        )}
      </header>
      {isOpen && problems.length > 0 && (
        <ul className="scroll">
          {problems.map((problem, index) => (
            <li key={index}>
              <span className={`sign ${problem.severity === "error" ? "bad" : "warn"}`}>
                {problem.severity === "error" ? "×" : "!"}
              </span>
              <button
                className="link"
                onClick={() => show(problem.network, problem.node ?? undefined)}
                disabled={problem.node === null}
              >
                <span>
                  <strong>{whereOf(problem.network, problem.node)}</strong> {problem.message}
                </span>
              </button>
              {problem.fix && <button onClick={() => fix(problem)}>{problem.fix.label}</button>}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
