// What was said, what is being written, and how it is drawn.

import { useEffect, useRef, useState } from "react";
import { address, ApiError, post, send } from "../api/http";
import type { ChatMessage, ModelFacts, WrittenEvent } from "../api/records";
import { eventsOf } from "../api/stream";
import { Failure, Field } from "../ui/parts";
import { AttentionView } from "./AttentionView";

const SETTINGS = [
  ["temperature", "Temperature", 0.7, "0 writes the most probable token; more is more varied"],
  ["top_p", "Top-p", 0.95, "Only the most probable tokens whose probabilities sum to so much"],
  ["max_tokens", "Max tokens", 256, "The most tokens of an answer"],
] as const;

/** What the model is given of a conversation: as its template has it, else the bare text. */
export function promptOf(facts: ModelFacts, said: readonly ChatMessage[]) {
  return facts.chat ? { messages: said } : { prompt: said.map(({ content }) => content).join("") };
}

export function Conversation({ facts }: { facts: ModelFacts }) {
  const [said, setSaid] = useState<ChatMessage[]>([]);
  const [draft, setDraft] = useState("");
  const [values, setValues] = useState<Record<string, string>>(
    Object.fromEntries(SETTINGS.map(([name, , value]) => [name, String(value)])),
  );
  const [error, setError] = useState<ApiError | null>(null);
  const [end, setEnd] = useState("");
  const [writing, setWriting] = useState<AbortController | null>(null);
  const last = useRef<AbortController>(null);
  useEffect(() => () => last.current?.abort(), []); // who leaves the page stops it

  /** Lets the model go on after what was said; `reopen` where its process has ended. */
  const write = async (before: ChatMessage[], reopen = false) => {
    const abort = new AbortController();
    last.current = abort;
    setWriting(abort);
    setError(null);
    setEnd("");
    setSaid(before);
    const chosen = Object.fromEntries(Object.entries(values).map(([name, text]) => [name, Number(text)]));
    const body = {
      ...promptOf(facts, before),
      ...chosen,
      stream: true,
      stream_options: { include_usage: true },
    };
    const begin = performance.now();
    let content = "";
    const route = `/models/${encodeURIComponent(facts.id)}`;
    try {
      if (reopen) await post(`${route}/open`);
      const what = facts.chat ? "chat" : "completions";
      const url = address(`${route}/${what}`);
      const answer = await send("POST", url, { body, signal: abort.signal });
      for await (const event of eventsOf<WrittenEvent>(answer)) {
        if (event.error) {
          const { message } = event.error;
          throw new ApiError(500, { code: "failed", message, hint: null, where: null });
        }
        for (const choice of event.choices ?? []) {
          content += choice.delta?.content ?? choice.text ?? "";
          setSaid([...before, { role: "assistant", content }]);
        }
        if (event.usage) {
          const count = event.usage.completion_tokens;
          const rate = (1000 * count) / (performance.now() - begin);
          setEnd(`${count} tokens, ${rate.toPrecision(3)} per second`);
        }
      }
    } catch (reason) {
      if (abort.signal.aborted) setEnd("stopped");
      else if (reason instanceof ApiError) setError(reason);
      else if (reason instanceof TypeError) {
        // The connection broke in the middle of the answer.
        const message = "The answer ended too early.";
        setError(new ApiError(0, { code: "unreachable", message, hint: null, where: null }));
      } else throw reason;
    } finally {
      setWriting(null);
    }
  };
  const ask = () => {
    if (!draft || writing) return;
    setDraft("");
    void write([...said, { role: "user", content: draft }]);
  };
  const retry = () => {
    const asked = said.findLastIndex(({ role }) => role === "user");
    void write(said.slice(0, asked + 1), true);
  };
  const wrong = SETTINGS.some(([name]) => !values[name] || !Number.isFinite(Number(values[name])));
  return (
    <>
      <section className="panel group" aria-label="How it writes">
        <div className="fields three">
          {SETTINGS.map(([name, label, , hint]) => (
            <Field key={name} label={label} hint={hint}>
              <input
                type="number"
                min={0}
                step={name === "max_tokens" ? 1 : 0.05}
                value={values[name]}
                onChange={(event) => setValues({ ...values, [name]: event.target.value })}
              />
            </Field>
          ))}
        </div>
        {!facts.chat && <p className="muted">It has no chat template: it goes on with the text as it is.</p>}
      </section>
      <div className="fields" role="log" aria-label="Conversation">
        {said.map((message, index) => (
          <p key={index} className="message" data-role={message.role}>
            {message.content}
          </p>
        ))}
      </div>
      {error && <Failure error={error} retry={retry} />}
      <section className="group panel" aria-label="Message">
        <textarea
          aria-label="Your text"
          placeholder="Enter sends, Shift+Enter begins a line"
          value={draft}
          onChange={(event) => setDraft(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            if (!wrong) ask();
          }}
        />
        <div className="row">
          <button className="primary" disabled={!draft || writing !== null || wrong} onClick={ask}>
            Send
          </button>
          <button disabled={!writing} onClick={() => writing?.abort()}>
            Stop
          </button>
          <button
            disabled={said.length === 0 || writing !== null}
            onClick={() => (setSaid([]), setError(null), setEnd(""))}
          >
            New conversation
          </button>
          <span className="spread" />
          <span className="muted" role="status">
            {writing ? "writing …" : end}
          </span>
        </div>
      </section>
      {facts.attention && said.length > 0 && !writing && <AttentionView facts={facts} said={said} />}
    </>
  );
}
