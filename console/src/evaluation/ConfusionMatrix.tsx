// Which class was taken for which; a cell leads to its samples.

import type { Confusion } from "../api/records";
import { percent } from "../ui/format";

interface ConfusionMatrixProps {
  confusion: Confusion;
  /** Shows cells as shares of their rows. */
  shares?: boolean;
  cell?: string | null;
  open?: (cell: string | null) => void;
}

/** So many strengths of a colour does the style sheet have for cells. */
const STRENGTHS = 15;

export function ConfusionMatrix({ confusion, shares = false, cell = null, open }: ConfusionMatrixProps) {
  const { classes, counts } = confusion;
  return (
    <table className="matrix" aria-label="Confusion matrix">
      <caption className="muted">Rows: {confusion.label}. Columns: what was predicted.</caption>
      <thead>
        <tr>
          <td />
          {classes.map((name) => (
            <th key={name} scope="col">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {counts.map((row, label) => {
          const sum = row.reduce((total, count) => total + count, 0) || 1;
          return (
            <tr key={classes[label]}>
              <th scope="row">{classes[label]}</th>
              {row.map((count, predicted) => {
                const id = `${classes[label]},${classes[predicted]}`;
                return (
                  <td
                    key={id}
                    data-share={Math.ceil((count / sum) * STRENGTHS)}
                    data-right={label === predicted || undefined}
                  >
                    <button
                      aria-pressed={cell === id}
                      aria-label={`${classes[label]} taken for ${classes[predicted]}: ${count}`}
                      title={`${count} of ${sum} (${percent(count / sum)})`}
                      disabled={!open || count === 0}
                      onClick={() => open?.(cell === id ? null : id)}
                    >
                      {count === 0 ? "" : shares ? Math.round((count / sum) * 100) : count}
                    </button>
                  </td>
                );
              })}
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
