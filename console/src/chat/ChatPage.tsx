// Language models of the folder, and a conversation with one of them.

import { useEffect, useState } from "react";
import { ApiError, post } from "../api/http";
import type { ModelFacts, ModelHead } from "../api/records";
import { useResource } from "../api/resource";
import type { Parts } from "../app/App";
import { attempt } from "../app/notices";
import { Link, navigate } from "../app/router";
import { chooseFile, taking, upload } from "../ui/files";
import { bytes } from "../ui/format";
import { Empty, Failure, Loading } from "../ui/parts";
import { Conversation } from "./Conversation";

export default function ChatPage({ parts }: { parts: Parts }) {
  const { data, error, reload } = useResource<{ models: ModelHead[]; folder: string }>("/models");
  const bring = async (file: File | null | undefined) => {
    if (!file) return;
    const { id } = await upload<{ id: string }>("/models", file);
    reload();
    navigate(`/chat/${encodeURIComponent(id)}`);
  };
  const asked = parts.model;
  return (
    <div className="two-columns" {...taking((file) => attempt(() => bring(file)))}>
      <aside className="left" aria-label="Language models">
        <div className="section-head">
          <h1>Language models</h1>
          <button
            className="changes"
            onClick={() => attempt(async () => bring(await chooseFile(".nnlp,.gguf")))}
          >
            Bring
          </button>
        </div>
        {error && <Failure error={error} retry={reload} />}
        {!data && !error && <Loading what="models" />}
        <ul className="scroll">
          {data?.models.map((model) => (
            <li key={model.id} className="trial" aria-current={model.id === asked || undefined}>
              <Link to={`/chat/${encodeURIComponent(model.id)}`} className="trial-name">
                {model.id}
              </Link>
              <span className="muted">
                {model.kind} · {bytes(model.bytes)}
              </span>
            </li>
          ))}
        </ul>
      </aside>
      {asked !== undefined ? (
        <Opened key={asked} model={asked} />
      ) : (
        <div className="centre">
          {data && (
            <Empty title={data.models.length > 0 ? "Choose a model" : "No language models yet"}>
              <p>A model is a folder of Hugging Face&apos;s libraries, a .nnlp or a .gguf in</p>
              <pre className="mono">{data.folder}</pre>
              <p>A link to a folder elsewhere will do; files can be dropped here.</p>
            </Empty>
          )}
        </div>
      )}
    </div>
  );
}

function Opened({ model }: { model: string }) {
  const [facts, setFacts] = useState<ModelFacts | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    setError(null);
    post<ModelFacts>(`/models/${encodeURIComponent(model)}/open`).then(
      (found) => isCurrent && setFacts(found),
      (reason: unknown) => {
        if (!(reason instanceof ApiError)) throw reason;
        if (isCurrent) setError(reason);
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [model, round]);
  const again = () => setRound((value) => value + 1);
  return (
    <div className="centre scroll chat">
      {error && <Failure error={error} retry={again} />}
      {!facts && !error && <Loading what={model} />}
      {facts && !facts.completions && (
        <Empty title="It writes no text">It may be a model of vectors, or one that answers to sounds or pictures.</Empty>
      )}
      {facts?.completions && <Conversation facts={facts} />}
    </div>
  );
}
