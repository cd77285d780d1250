// Where the tokens of a conversation look, by the weights of one head of one layer.

import { useEffect, useRef, useState, type CSSProperties } from "react";
import { ApiError, post } from "../api/http";
import type { Attention, ChatMessage, ModelFacts } from "../api/records";
import { Failure, Field } from "../ui/parts";
import { promptOf } from "./Conversation";

interface AttentionViewProps {
  facts: ModelFacts;
  said: readonly ChatMessage[];
}

export function AttentionView({ facts, said }: AttentionViewProps) {
  const [shown, show] = useState(false);
  const [place, setPlace] = useState({ layer: 0, head: 0 });
  const [found, setFound] = useState<Attention | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [token, choose] = useState<number | null>(null);
  useEffect(() => {
    if (!shown) return;
    let isCurrent = true;
    const body = { ...promptOf(facts, said), ...place };
    post<Attention>(`/models/${encodeURIComponent(facts.id)}/attention`, body).then(
      (answer) => isCurrent && (setFound(answer), setError(null)),
      (reason: unknown) => {
        if (!(reason instanceof ApiError)) throw reason;
        if (isCurrent) setError(reason);
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [shown, facts, said, place]);

  const index = Math.min(token ?? Infinity, (found?.tokens.length ?? 1) - 1);
  const row = found?.weights[index];
  return (
    <section className="panel group" aria-label="Attention">
      <div className="row">
        <h2>Attention</h2>
        <span className="spread" />
        <button aria-pressed={shown} onClick={() => show(!shown)}>
          {shown ? "Hide it" : "Show it"}
        </button>
      </div>
      {shown && error && <Failure error={error} />}
      {shown && found && row && !error && (
        <>
          <div className="fields two">
            <Choice label="Layer" count={found.layers} value={place.layer} choose={(layer) => setPlace({ ...place, layer })} />
            <Choice label="Head" count={found.heads} value={place.head} choose={(head) => setPlace({ ...place, head })} />
          </div>
          <p className="muted">Choose a token: the others are as dark as what it takes from them.</p>
          <div className="tokens" role="group" aria-label="Tokens">
            {found.tokens.map((text, other) => (
              <button
                key={other}
                aria-pressed={other === index}
                aria-label={`${JSON.stringify(text)} ${row[other]}`}
                title={`${JSON.stringify(text)} ${row[other]}`}
                style={{ "--share": row[other] } as CSSProperties}
                onClick={() => choose(other)}
              >
                {text.replaceAll("\n", "⏎")}
              </button>
            ))}
          </div>
          <Weights weights={found.weights} choose={choose} />
        </>
      )}
    </section>
  );
}

interface ChoiceProps {
  label: string;
  count: number;
  value: number;
  choose: (value: number) => void;
}

function Choice({ label, count, value, choose }: ChoiceProps) {
  return (
    <Field label={label}>
      <select value={value} onChange={(event) => choose(Number(event.target.value))}>
        {Array.from({ length: count }, (_, index) => (
          <option key={index} value={index}>
            {index + 1}
          </option>
        ))}
      </select>
    </Field>
  );
}

/** All rows at once, a point for each pair of tokens. */
function Weights({ weights, choose }: { weights: number[][]; choose: (row: number) => void }) {
  const ref = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const drawing = ref.current?.getContext("2d");
    if (!ref.current || !drawing) return;
    drawing.clearRect(0, 0, weights.length, weights.length);
    drawing.fillStyle = "#3b74e8";
    weights.forEach((row, y) =>
      row.forEach((weight, x) => {
        drawing.globalAlpha = weight;
        drawing.fillRect(x, y, 1, 1);
      }),
    );
  }, [weights]);
  return (
    <canvas
      ref={ref}
      className="heads"
      width={weights.length}
      height={weights.length}
      role="img"
      aria-label="Weights of all tokens"
      title="A row for each token; a click chooses it"
      onClick={(event) => {
        const { top, height } = event.currentTarget.getBoundingClientRect();
        choose(Math.min(weights.length - 1, Math.floor(((event.clientY - top) / height) * weights.length)));
      }}
    />
  );
}
