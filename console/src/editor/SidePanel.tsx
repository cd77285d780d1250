// Right of the canvas: what the network costs, its code.

import type { Totals } from "../api/network";
import { useParameter } from "../app/router";
import { count } from "../ui/format";
import { Tabs } from "../ui/parts";
import { useTotals } from "./analysis";
import { CodeView } from "./CodeView";
import { STATISTICS, statisticText, useStatistic, type Statistic } from "./statistic";

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
          <TotalsCard />
        </>
      )}
    </aside>
  );
}

const SHOWN: (keyof Totals & Statistic)[] = ["parameters", "multiply_adds", "operations", "bytes"];

function TotalsCard() {
  const totals = useTotals();
  const { statistic } = useStatistic();
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
          </tr>
        </thead>
        <tbody>
          {SHOWN.map((name) => (
            <tr key={name} data-total={name}>
              <td>{STATISTICS[name]}</td>
              <td className="number" title={totals?.[name].toLocaleString("en")}>
                {statisticText(name, totals?.[name])}
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
    </section>
  );
}
