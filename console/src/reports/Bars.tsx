// Bars: a measurement per row with its interval, and how many rows have which result.

import type { Drawn } from "./Drawings";
import { nameOf, quantity } from "./text";

const MAX_BARS = 100;

export function Bars({ plot, rows, y }: Drawn) {
  const names = [...plot.by, plot.x];
  const bars = rows.slice(0, MAX_BARS).map((row) => {
    const value = Number(row[y.name]);
    const [low, high] = y.interval ?? [y.name, y.name];
    const ends = [Number(row[low] ?? value), Number(row[high] ?? value)] as const;
    return { name: nameOf(row, rows, names), value, ends };
  });
  const most = Math.max(...bars.map(({ ends }) => ends[1]));
  const share = (value: number) => `${Math.max(0, value / most) * 100}%`;
  return (
    <figure className="panel group" aria-label={y.text}>
      <figcaption>{y.interval ? `${y.text}, with its 95 % interval` : y.text}</figcaption>
      <table className="bar-table">
        <tbody>
          {bars.map(({ name, value, ends: [low, high] }, index) => (
            <tr key={index}>
              <th scope="row">{name}</th>
              <td className="bar-cell">
                <span className="bar" style={{ width: share(value) }} />
                <span className="interval" style={{ left: share(low), width: share(high - low) }} />
              </td>
              <td className="number">{quantity(value, y.unit)}</td>
              <td className="number muted">
                {quantity(low, y.unit)} to {quantity(high, y.unit)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > MAX_BARS && <p className="muted">The first {MAX_BARS} of {rows.length}.</p>}
    </figure>
  );
}

export function Counts({ rows, x, y }: Drawn) {
  const groups = [...Map.groupBy(rows, (row) => String(row[x.name]))];
  const results = [...new Set(rows.map((row) => String(row[y.name])))].sort();
  const title = `${y.text} by ${x.text}`;
  return (
    <figure className="panel group" aria-label={title}>
      <figcaption>{title}</figcaption>
      <table className="bar-table" aria-label={title}>
        <thead>
          <tr>
            <th>{x.text}</th>
            <th />
            {results.map((result) => (
              <th key={result} className="number">
                {result}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {groups.map(([name, own]) => {
            const count = (result: string) =>
              own.filter((row) => String(row[y.name]) === result).length;
            return (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td className="bar-cell">
                  {results.map((result) => (
                    <span
                      key={result}
                      className="bar"
                      data-status={result}
                      title={`${result}: ${count(result)}`}
                      style={{ width: `${(count(result) / own.length) * 100}%` }}
                    />
                  ))}
                </td>
                {results.map((result) => (
                  <td key={result} className="number">
                    {count(result)}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </figure>
  );
}
