// Right of the canvas: start a run, what the network costs, its code.

import type { Totals } from "../api/network";
import type { Trial } from "../api/records";
import { useResource } from "../api/resource";
import { Link, useParameter } from "../app/router";
import { start } from "../training/start";
import { count } from "../ui/format";
import { Tabs } from "../ui/parts";
import { useAnalysis, useTotals } from "./analysis";
import { CodeView } from "./CodeView";
import { STATISTICS, statisticText, useStatistic, type Statistic } from "./statistic";
import { useEditor } from "./store";

const TABS = [
  { id: "overview", title: "Overview" },
  { id: "python", title: "Python" },
] as const;

export function SidePanel() {
  const [tab, setTab] = useParameter("side");
  const current = tab === "python" ? "python" : "overview";
  return (
    <aside className="right" aria-label="Overview">
      <Tabs
        label="Side panel"
        tabs={TABS}
        current={current}
        choose={(id) => setTab(id === "overview" ? null : id)}
      />
      {current === "python" ? (
        <CodeView />
      ) : (
        <>
          <RunCard />
          <TotalsCard />
        </>
      )}
    </aside>
  );
}

function RunCard() {
  const trainable = useAnalysis((state) => state.analysis?.trainable ?? false);
  const wrong = useAnalysis((state) =>
    state.analysis?.config.find((problem) => problem.severity === "error"),
  );
  const project = useEditor((state) => state.project);
  const config = useEditor((state) => state.history?.present.config);
  const from = useEditor((state) => state.history?.present.weights_from);
  const forget = () =>
    useEditor.getState().edit(({ weights_from: _, ...document }) => document);
  return (
    <section className="section" aria-label="Run">
      <div className="run-buttons">
        <button
          className="primary changes"
          disabled={!trainable || wrong !== undefined}
          title={
            !trainable
              ? "The network cannot be trained yet: see the problems below."
              : wrong && `Config: ${wrong.message}`
          }
          onClick={() => start("train")}
        >
          Train
        </button>
        <button className="changes" disabled={!trainable || wrong !== undefined} onClick={() => start("profile")}>
          Profile
        </button>
      </div>
      {config && (
        <p className="muted">
          {config.optimizer.type} · {config.max_epoch} epochs of batches of {config.batch_size} ·{" "}
          <Link to={`/p/${project?.id}/config`}>change</Link>
        </p>
      )}
      {from && (
        <p className="muted">
          Starts with the weights of {"trial" in from ? "a trial" : "the file"}, where they fit ·{" "}
          <button className="link" onClick={forget}>
            forget them
          </button>
        </p>
      )}
    </section>
  );
}

const SHOWN: (keyof Totals & Statistic)[] = ["parameters", "multiply_adds", "operations", "bytes"];

function TotalsCard() {
  const totals = useTotals();
  const ms = useAnalysis((state) => state.analysis?.ms);
  const { statistic } = useStatistic();
  const project = useEditor((state) => state.project?.id ?? null);
  const { data } = useResource<{ trials: Trial[] }>(project && "/trials", {
    project,
    sort: "-created",
    limit: 1,
  });
  const last = data?.trials[0];
  const before: Partial<Record<Statistic, number | null>> = last
    ? { parameters: last.parameters, multiply_adds: last.multiply_adds }
    : {};
  return (
    <section className="section" aria-label="Totals">
      <header>
        <h2>Totals</h2>
        <span className="muted">{totals ? `${count(totals.nodes)} layers` : ""}</span>
      </header>
      <table className="totals">
        <thead className="hidden-label">
          <tr>
            <th>What</th>
            <th>Of the network</th>
            <th>More than in the last trial</th>
          </tr>
        </thead>
        <tbody>
          {SHOWN.map((name) => (
            <tr key={name} data-total={name}>
              <td>{STATISTICS[name]}</td>
              <td className="number" title={totals?.[name].toLocaleString("en")}>
                {statisticText(name, totals?.[name])}
              </td>
              <td className="number delta">
                <Delta now={totals?.[name]} before={before[name]} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <label className="row">
        <span className="muted">Bars show</span>
        <select
          value={statistic}
          onChange={(event) => useStatistic.setState({ statistic: event.target.value as Statistic })}
        >
          {Object.entries(STATISTICS).map(([name, title]) => (
            <option key={name} value={name}>
              {title}
            </option>
          ))}
        </select>
      </label>
      {last && (
        <p className="muted">
          Differences are to trial {last.number}. Counted for one sample
          {ms === undefined ? "." : `, in ${ms.toFixed(0)} ms.`}
        </p>
      )}
    </section>
  );
}

function Delta({ now, before }: { now: number | undefined; before: number | null | undefined }) {
  if (now === undefined || before === null || before === undefined) return null;
  const difference = now - before;
  if (difference === 0) return <span className="muted">±0</span>;
  return (
    <span className={difference > 0 ? "warn" : "good"}>
      {difference > 0 ? "+" : "−"}
      {count(Math.abs(difference))}
    </span>
  );
}
