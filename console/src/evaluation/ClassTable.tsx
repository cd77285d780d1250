// Precision, recall and F1 of every class, and their means.

import type { Confusion } from "../api/records";
import { percent } from "../ui/format";

export function ClassTable({ confusion }: { confusion: Confusion }) {
  const { classes, precision, recall, f1, support } = confusion;
  const total = support.reduce((sum, count) => sum + count, 0);
  const rows = [
    ...classes.map((name, index) => ({
      name,
      numbers: [precision[index], recall[index], f1[index]],
      samples: support[index],
    })),
    ...(["macro", "weighted"] as const).map((name) => ({
      name: `${name} mean`,
      numbers: [confusion[name].precision, confusion[name].recall, confusion[name].f1],
      samples: total,
    })),
  ];
  return (
    <table aria-label="Classes">
      <thead>
        <tr>
          <th>Class</th>
          <th className="number">Precision</th>
          <th className="number">Recall</th>
          <th className="number">F1</th>
          <th className="number">Samples</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(({ name, numbers, samples }) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            {numbers.map((number, index) => (
              <td key={index} className="number">
                {percent(number)}
              </td>
            ))}
            <td className="number">{samples}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
