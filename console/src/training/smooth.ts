// Curves that can be read: smoothed, and joined on one axis.

/** An exponential mean that does not lean to its first value; 0 leaves the curve as it is. */
export function smooth(values: readonly number[], weight: number): number[] {
  if (weight <= 0) return [...values];
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = sum * weight + value;
    total = total * weight + 1;
    return sum / total;
  });
}

/** Least and greatest values around every point, as far as smoothing with this weight looks. */
export function extremes(values: readonly number[], weight: number): { low: number[]; high: number[] } {
  const reach = Math.round(1 / (1 - weight));
  const around = values.map((_, index) =>
    values.slice(Math.max(index - reach, 0), index + reach + 1).filter(Number.isFinite),
  );
  return {
    low: around.map((some) => Math.min(...some)),
    high: around.map((some) => Math.max(...some)),
  };
}

/** One x axis for curves of different steps: null where a curve has no point. */
export function join(
  curves: readonly { x: readonly number[]; y: readonly number[] }[],
): [number[], ...(number | null)[][]] {
  const x = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const place = new Map(x.map((value, index) => [value, index]));
  const columns = curves.map((curve) => {
    const column = new Array<number | null>(x.length).fill(null);
    curve.x.forEach((value, index) => {
      const at = place.get(value);
      const y = curve.y[index];
      if (at !== undefined && y !== undefined && Number.isFinite(y)) column[at] = y;
    });
    return column;
  });
  return [x, ...columns];
}
