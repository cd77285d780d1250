// What a network said: the largest values first, as bars.

import type { Answer } from "../api/records";
import { measure, shape } from "../ui/format";

const MOST = 20;

export function AnswerView({ answer }: { answer: Answer }) {
  return answer.outputs.map((output) => {
    const values = (output.values ?? [])
      .map((value, index) => ({ index, value }))
      .sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
    const most = Math.max(...values.map(({ value }) => Math.abs(value ?? 0))) || 1;
    return (
      <section key={output.name} className="panel group" aria-label={`Output ${output.name}`}>
        <h2>
          {output.name} <span className="muted">{shape(output.shape)}</span>
        </h2>
        {output.picture && <img className="sample" src={output.picture} alt={output.name} />}
        <table className="bar-table" aria-label={output.name}>
          <tbody>
            {values.slice(0, MOST).map(({ index, value }) => (
              <tr key={index}>
                <th scope="row">{index}</th>
                <td className="bar-cell">
                  <span className="bar" style={{ width: `${(Math.abs(value ?? 0) / most) * 100}%` }} />
                </td>
                <td className="number">{measure(value)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {values.length > MOST && <p className="muted">and {values.length - MOST} smaller ones</p>}
      </section>
    );
  });
}
