// The trials of a project: find, compare, pin, lock, tag.

import { useEffect, useState } from "react";
import { address, type Query } from "../api/http";
import type { Trial } from "../api/records";
import { useResource } from "../api/resource";
import { Link, useParameter } from "../app/router";
import { count, measure } from "../ui/format";
import { Empty, Failure, Loading, Menu, Sparkline } from "../ui/parts";
import { useTrialChanges } from "./live";
import { trialAddress } from "./start";

const SORTS: Record<string, string> = {
  "-created": "Newest first",
  best: "Best first",
  multiply_adds: "Fewest multiply-adds",
  name: "By name",
};

/** So many are shown at first, and more each time that more are asked for. */
const PAGE = 200;

interface TrialListProps {
  project: string;
  current: string | null;
  compared: readonly string[];
  compare: (ids: string[]) => void;
}

function useTrials(project: string) {
  const [text, setText] = useParameter("q");
  const [status, setStatus] = useParameter("status");
  const [sort, setSort] = useParameter("sort");
  const [limit, setLimit] = useState(PAGE);
  const query: Query = {
    project,
    q: text || null,
    status,
    sort: sort ?? "-created",
    limit,
    sparkline: "valid_error",
  };
  const resource = useResource<{ trials: Trial[]; total: number }>("/trials", query);
  const { set, reload, data } = resource;
  useTrialChanges((trial) => {
    if (trial.project !== project) return;
    const known = data?.trials.find((other) => other.id === trial.id);
    if (known) {
      set((old) => ({
        ...old,
        trials: old.trials.map((other) => (other.id === trial.id ? { ...other, ...trial } : other)),
      }));
    }
    // One that has ended has a curve, and may have taken the front from others.
    if (!known || known.status !== trial.status) reload();
  }, reload);
  const more = () => setLimit(limit + PAGE);
  return { ...resource, text, setText, status, setStatus, sort, setSort, more };
}

export function TrialList({ project, current, compared, compare }: TrialListProps) {
  const trials = useTrials(project);
  const [typed, setTyped] = useState(trials.text ?? "");
  const { setText, data, error, reload } = trials;
  useEffect(() => {
    const timer = window.setTimeout(() => setText(typed || null), 200);
    return () => window.clearTimeout(timer);
  }, [typed, setText]);
  const toggle = (id: string, on: boolean) =>
    compare(on ? [...compared, id] : compared.filter((other) => other !== id));
  // Pinned trials stay on top, whatever the order is.
  const shown = [...(data?.trials ?? [])].sort((a, b) => Number(b.pinned) - Number(a.pinned));

  return (
    <aside className="left trial-list" aria-label="Trials">
      <div className="filters">
        <input
          type="search"
          placeholder="Find a trial"
          aria-label="Find a trial"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <div className="row">
          <select
            aria-label="Status"
            value={trials.status ?? ""}
            onChange={(event) => trials.setStatus(event.target.value || null)}
          >
            <option value="">All</option>
            {["running", "suspended", "finished", "failed", "interrupted"].map((status) => (
              <option key={status}>{status}</option>
            ))}
          </select>
          <select
            aria-label="Order"
            value={trials.sort ?? "-created"}
            onChange={(event) => trials.setSort(event.target.value)}
          >
            {Object.entries(SORTS).map(([sort, title]) => (
              <option key={sort} value={sort}>
                {title}
              </option>
            ))}
          </select>
        </div>
        <div className="row">
          <Link
            to={`/p/${project}/compare?trials=${compared.join(",")}`}
            className="button"
            aria-disabled={compared.length < 2}
          >
            Compare {compared.length > 0 ? compared.length : ""}
          </Link>
          <span className="spread" />
          <Menu
            label="Export"
            items={["csv", "json"].map((format) => ({
              label: `All trials as ${format.toUpperCase()}`,
              act: () => window.location.assign(address(`/trials/export.${format}`, { project })),
            }))}
          />
        </div>
      </div>
      {error && <Failure error={error} retry={reload} />}
      {!data && !error && <Loading what="trials" />}
      {data?.trials.length === 0 && (
        <Empty title={trials.text || trials.status ? "No trial fits" : "No trials yet"}>
          {!trials.text && !trials.status && "Train the network, and every run is kept here."}
        </Empty>
      )}
      <ul className="scroll">
        {shown.map((trial) => (
          <TrialCard
            key={trial.id}
            trial={trial}
            isCurrent={trial.id === current}
            isCompared={compared.includes(trial.id)}
            toggle={toggle}
          />
        ))}
        {data && data.total > data.trials.length && (
          <li>
            <button onClick={trials.more}>More of {data.total.toLocaleString("en")} trials</button>
          </li>
        )}
      </ul>
    </aside>
  );
}

interface TrialCardProps {
  trial: Trial;
  isCurrent: boolean;
  isCompared: boolean;
  toggle: (id: string, on: boolean) => void;
}

function TrialCard({ trial, isCurrent, isCompared, toggle }: TrialCardProps) {
  const search = new URLSearchParams(window.location.search).toString();
  return (
    <li className="trial" aria-current={isCurrent || undefined} data-trial={trial.number}>
      <div className="row">
        <input
          type="checkbox"
          aria-label={`Compare trial ${trial.number}`}
          checked={isCompared}
          onChange={(event) => toggle(trial.id, event.target.checked)}
        />
        <Link to={`${trialAddress(trial)}${search ? `?${search}` : ""}`} className="trial-name">
          {trial.name || `Trial ${trial.number}`}
        </Link>
        <span className="spread" />
        {trial.multiply_adds !== null && (
          <span className="muted" title="Multiply-adds">
            {count(trial.multiply_adds)}
          </span>
        )}
        {trial.pinned && <span title="Pinned">★</span>}
        {trial.locked && <span className="badge">locked</span>}
        {trial.pareto && <span className="tag" title="No trial is better in error and in multiply-adds">front</span>}
      </div>
      <div className="row">
        <span className={`status ${trial.status}`}>
          {trial.status === "running" && trial.max_epoch
            ? `${trial.epoch ?? 0} / ${trial.max_epoch}`
            : trial.status}
        </span>
        <span className="spread" />
        {trial.sparkline && <Sparkline values={trial.sparkline} label="Validation error over epochs" />}
        {trial.best ? (
          <span className="number" title={`Best ${trial.best.name}, in epoch ${trial.best.epoch}`}>
            {measure(trial.best.value)}
            <span className="muted"> @{trial.best.epoch}</span>
          </span>
        ) : (
          <span className="number">{trial.kind}</span>
        )}
      </div>
      {trial.tags.length > 0 && (
        <div className="row">
          {trial.tags.map((tag) => (
            <span key={tag} className="tag">
              {tag}
            </span>
          ))}
        </div>
      )}
    </li>
  );
}
