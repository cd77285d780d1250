// Values as bars beside each other.

import { measure } from "./format";

export interface Bar {
  name: string;
  value: number;
}

const MAX_NAMES = 24;

export function Bars({ bars }: { bars: readonly Bar[] }) {
  if (bars.length === 0) return null;
  const values = bars.map((bar) => bar.value);
  const low = Math.min(0, ...values);
  const range = Math.max(0, ...values) - low || 1;
  const part = (value: number) => `${(value / range) * 100}%`;
  const text = bars.map(({ name, value }) => `${name}: ${Number.isInteger(value) ? value : measure(value)}`);
  return (
    <div className="bars" role="img" aria-label={text.join(", ")}>
      {bars.map((bar, index) => (
        <div key={index} title={text[index]}>
          <span className="drawn">
            <span
              className="bar"
              style={{ height: part(Math.abs(bar.value)), bottom: part(Math.min(bar.value, 0) - low) }}
            />
          </span>
          {bars.length <= MAX_NAMES && <span className="name">{bar.name}</span>}
        </div>
      ))}
    </div>
  );
}
