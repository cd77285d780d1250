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
