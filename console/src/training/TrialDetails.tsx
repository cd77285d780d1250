// What is known of one trial, and what can be done with it.

import { useEffect, useState } from "react";
import { address } from "../api/http";
import type { Artifact, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { navigate } from "../app/router";
import { bytes, count, duration, measure, moment } from "../ui/format";
import { Failure, Menu } from "../ui/parts";
import { ACTION_TITLES, ACTIONS, act, change, discard, evaluate, openInEditor } from "./actions";
import { downloads } from "./downloads";

interface TrialDetailsProps {
  trial: Trial;
  take: (trial: Trial) => void;
}

export function TrialDetails({ trial, take }: TrialDetailsProps) {
  return (
    <aside className="right" aria-label="Trial">
      <section className="section">
        <header>
          <span className={`status ${trial.status}`}>{trial.status}</span>
          <span className="row">
            <button
              className="changes"
              aria-pressed={trial.pinned}
              title={trial.pinned ? "Unpin" : "Pin: stays on top of the list"}
              onClick={() => change(trial, { pinned: !trial.pinned }, take)}
            >
              Pin
            </button>
            <button
              className="changes"
              aria-pressed={trial.locked}
              title={trial.locked ? "Unlock" : "Lock: cannot be deleted"}
              onClick={() => change(trial, { locked: !trial.locked }, take)}
            >
              Lock
            </button>
            <Menu
              name="More for this trial"
              label="⋯"
              items={[
                ...downloads(trial.id),
                {
                  label: "Move to the trash",
                  danger: true,
                  disabled: trial.locked,
                  act: () => discard(trial, () => navigate(`/p/${trial.project}/train`)),
                },
              ]}
            />
          </span>
        </header>
        <Progress trial={trial} />
        <div className="row wrap">
          {ACTIONS[trial.status].map((action) => (
            <button key={action} className="changes" onClick={() => act(trial, action, take)}>
              {ACTION_TITLES[action]}
            </button>
          ))}
          <button onClick={() => openInEditor(trial, false)}>Open in Edit</button>
          <button onClick={() => openInEditor(trial, true)}>… with weights</button>
          {trial.kind === "train" && trial.best && (
            <button className="changes" onClick={() => evaluate(trial)}>Evaluate</button>
          )}
        </div>
        {trial.error && <Failure error={trial.error} />}
      </section>
      <section className="section" aria-label="Results">
        <dl className="facts">
          {trial.best && (
            <>
              <dt>Best {trial.best.name}</dt>
              <dd>
                {measure(trial.best.value)} <span className="muted">epoch {trial.best.epoch}</span>
              </dd>
            </>
          )}
          {Object.entries(trial.last ?? {}).map(([name, value]) => (
            <Fact key={name} name={`Last ${name}`} value={measure(value)} />
          ))}
          <Fact name="Parameters" value={count(trial.parameters)} />
          <Fact name="Multiply-adds" value={count(trial.multiply_adds)} />
          <Fact name="Seed" value={String(trial.seed)} />
          <Fact name="Started" value={moment(trial.started)} />
          {trial.started !== null && trial.ended !== null && (
            <Fact name="Took" value={duration(trial.ended - trial.started)} />
          )}
        </dl>
      </section>
      <Notes key={trial.id} trial={trial} take={take} />
      <Files trial={trial} />
    </aside>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}

function Progress({ trial }: { trial: Trial }) {
  if (!trial.max_epoch) return null;
  return (
    <div>
      <progress max={trial.max_epoch} value={trial.epoch ?? 0} aria-label="Epochs" />
      <p className="muted row">
        Epoch {trial.epoch ?? 0} of {trial.max_epoch}
        <span className="spread" />
        {trial.status === "running" && trial.eta_s !== null && `${duration(trial.eta_s)} left`}
      </p>
    </div>
  );
}

function Notes({ trial, take }: TrialDetailsProps) {
  const [name, setName] = useState(trial.name);
  const [note, setNote] = useState(trial.note ?? "");
  const [tags, setTags] = useState(trial.tags.join(", "));
  const split = () => tags.split(",").map((tag) => tag.trim()).filter(Boolean);
  return (
    <section className="section fields" aria-label="Notes">
      <label className="field">
        <span>Name</span>
        <input
          value={name}
          onChange={(event) => setName(event.target.value)}
          onBlur={() => name !== trial.name && change(trial, { name }, take)}
        />
      </label>
      <label className="field">
        <span>Tags</span>
        <input
          value={tags}
          placeholder="with commas between them"
          onChange={(event) => setTags(event.target.value)}
          onBlur={() => tags !== trial.tags.join(", ") && change(trial, { tags: split() }, take)}
        />
      </label>
      <label className="field">
        <span>Note</span>
        <textarea
          rows={3}
          value={note}
          onChange={(event) => setNote(event.target.value)}
          onBlur={() => note !== (trial.note ?? "") && change(trial, { note }, take)}
        />
      </label>
    </section>
  );
}

function Files({ trial }: { trial: Trial }) {
  const { data, reload } = useResource<{ artifacts: Artifact[] }>(`/trials/${trial.id}/artifacts`);
  useEffect(reload, [trial.status, reload]);
  if (!data || data.artifacts.length === 0) return null;
  return (
    <section className="section" aria-label="Files">
      <h2>Files</h2>
      {data.artifacts.map((file) => (
        <div key={file.id} className="row">
          <a href={address(`/trials/${trial.id}/artifacts/${file.id}`)} download>
            {file.name}
          </a>
          <span className="spread" />
          <span className="muted">{bytes(file.bytes)}</span>
        </div>
      ))}
    </section>
  );
}
