// Values as bars beside each other.

import { measure } from "./format";

export interface Bar {
  name: string;
  value: number;
}

const MAX_NAMES = 24;

export function Bars({ bars }: { bars: readonly Bar[] }) {
  if (bars.length === 0) return null;
  const most = Math.max(...bars.map((bar) => bar.value)) || 1;
  const text = bars.map(({ name, value }) => `${name}: ${Number.isInteger(value) ? value : measure(value)}`);
  return (
    <div className="bars" role="img" aria-label={text.join(", ")}>
      {bars.map((bar, index) => (
        <div key={index} title={text[index]}>
          <span className="bar" style={{ height: `${(bar.value / most) * 100}%` }} />
          {bars.length <= MAX_NAMES && <span className="name">{bar.name}</span>}
        </div>
      ))}
    </div>
  );
}
