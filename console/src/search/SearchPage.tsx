// Structure search: its settings, the front of error and cost as it grows, its candidates.

import { lazy, useEffect, useRef, useState } from "react";
import { address, post } from "../api/http";
import type { Front, Search } from "../api/records";
import { useResource } from "../api/resource";
import { listen } from "../api/stream";
import type { Parts } from "../app/App";
import { attempt } from "../app/notices";
import { Link, useParameter } from "../app/router";
import { useEditor } from "../editor/store";
import { count, measure, moment } from "../ui/format";
import { Empty, Failure, Loading } from "../ui/parts";
import { idOf, scatterOption } from "../ui/scatter";
import { CandidateCard } from "./CandidateCard";
import { CandidateTable } from "./CandidateTable";
import { SettingsForm } from "./SettingsForm";

const Chart = lazy(() => import("../ui/Chart"));

export default function SearchPage({ parts }: { parts: Parts }) {
  const project = useEditor((state) => state.project?.id ?? "");
  const { data, error, reload, set } = useResource<{ searches: Search[] }>("/searches", {
    project,
    // Asked again when another search is shown: it may be a new one.
    shown: parts.search,
  });
  return (
    <div className="editor search">
      <aside className="left" aria-label="Searches">
        <SettingsForm project={project} />
        {error && <Failure error={error} retry={reload} />}
        <ul className="scroll">
          {data?.searches.map((search) => (
            <li key={search.id} className="trial" aria-current={search.id === parts.search || undefined}>
              <Link to={`/p/${project}/search/${search.id}`} className="trial-name">
                {moment(search.created)}
              </Link>
              <span className={`status ${search.status}`}>
                {search.attempts} tried, {search.rejected} rejected
                {search.best && `, best ${measure(search.best.error)}`}
              </span>
            </li>
          ))}
        </ul>
      </aside>
      {parts.search === undefined ? (
        <div className="centre">
          <Empty title="Let the machine look for a better network">
            A search changes the network in small steps, trains what comes out, and keeps what is
            better in error or cheaper in multiply-adds. Every candidate is a trial like any other.
          </Empty>
        </div>
      ) : (
        <Shown
          key={parts.search}
          project={project}
          id={parts.search}
          changed={(now) =>
            set(({ searches }) => ({
              searches: searches.map((search) => (search.id === now.id ? now : search)),
            }))
          }
        />
      )}
    </div>
  );
}

interface ShownProps {
  project: string;
  id: string;
  changed: (search: Search) => void;
}

function Shown({ project, id, changed }: ShownProps) {
  const found = useResource<Search>(`/searches/${id}`);
  const front = useResource<Front>(`/searches/${id}/front`);
  const [chosen, choose] = useParameter("candidate");
  // Which of the costs that there are is the highest to show; at first there is no limit.
  const [step, setStep] = useState(Infinity);
  const { reload } = front;
  const { set } = found;
  const latest = useRef(changed);
  latest.current = changed;
  const isRunning = found.data?.status === "running";
  useEffect(() => {
    if (!isRunning) return;
    return listen(address(`/searches/${id}/events`), {
      candidate: () => reload(),
      status: (data) => {
        const now = JSON.parse(data) as Search;
        set(() => now);
        latest.current(now);
      },
    });
  }, [id, isRunning, reload, set]);

  const error = found.error ?? front.error;
  if (error) return <Failure error={error} />;
  if (!found.data || !front.data) return <Loading what="the search" />;
  const search = found.data;
  const { candidates: all, front: best } = front.data;
  const costs = [...new Set(all.flatMap((one) => one.multiply_adds ?? []))].sort((a, b) => a - b);
  const limit = costs[Math.min(step, costs.length - 1)] ?? 0;
  const candidates = all.filter((one) => (one.multiply_adds ?? 0) <= limit);
  const points = candidates.flatMap((one) =>
    one.error === null || one.multiply_adds === null
      ? []
      : [
          {
            id: String(one.number),
            title: `Candidate ${one.number}`,
            x: one.multiply_adds,
            y: one.error,
            onFront: best.includes(one.number),
            isCurrent: String(one.number) === chosen,
          },
        ],
  );
  const candidate = all.find((one) => String(one.number) === chosen);
  return (
    <>
      <div className="centre">
        <div className="network-bar pad">
          <span className={`status ${search.status}`}>{search.status}</span>
          <span className="muted">
            {search.attempts} of {search.settings.attempts} attempts · {best.length} on the front
          </span>
          <span className="spread" />
          {costs.length > 1 && (
            <label className="row muted">
              Multiply-adds up to {count(limit)}
              <input
                type="range"
                aria-label="Highest number of multiply-adds"
                max={costs.length - 1}
                value={Math.min(step, costs.length - 1)}
                onChange={(event) => setStep(Number(event.target.value))}
              />
            </label>
          )}
          {isRunning && (
            <button className="changes" onClick={() => attempt(() => post(`/searches/${id}/cancel`))}>
              Stop
            </button>
          )}
          {(search.status === "cancelled" || search.status === "failed") && (
            <button
              className="changes"
              onClick={() =>
                attempt(async () => {
                  const now = await post<Search>(`/searches/${id}/resume`);
                  set(() => now);
                  changed(now);
                })
              }
            >
              Go on
            </button>
          )}
        </div>
        {points.length === 0 ? (
          <Empty title={isRunning ? "The first candidates are being trained" : "No candidate was trained"} />
        ) : (
          <Chart
            label="Front of the search"
            of={[front.data, chosen, limit]}
            option={(colors) =>
              scatterOption(points, { x: "Multiply-adds", y: "Validation error" }, colors)
            }
            click={(data) => choose(idOf(data))}
          />
        )}
        <CandidateTable candidates={candidates} front={best} chosen={chosen} choose={choose} />
      </div>
      <aside className="right" aria-label="Candidate">
        {candidate ? (
          <CandidateCard project={project} search={id} candidate={candidate} />
        ) : (
          <p className="section muted">Choose a candidate in the drawing or in the list.</p>
        )}
      </aside>
    </>
  );
}
