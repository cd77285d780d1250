// Numbers, sizes and times as they are read.

const UNITS = ["", " k", " M", " G", " T"];

/** 1234567 as 1.23 M; whole numbers under 10,000 as they are. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 10_000) return value.toLocaleString("en");
  let scaled = value;
  let unit = 0;
  while (Math.abs(scaled) >= 999.5 && unit < UNITS.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${scaled.toPrecision(3)}${UNITS[unit] ?? ""}`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  let scaled = value;
  let unit = 0;
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (scaled >= 1024 && unit < names.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? scaled : scaled.toPrecision(3)} ${names[unit] ?? ""}`;
}

/** A measured value: four significant digits. */
export function measure(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}

export function percent(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${(value * 100).toFixed(2)} %`;
}

export function shape(dimensions: readonly number[], batch = false): string {
  const shown = batch ? dimensions.slice(1) : dimensions;
  return shown.length === 0 ? "scalar" : shown.join(" × ");
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function moment(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  const date = new Date(seconds * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return date.toLocaleString("en-GB", {
    ...(today ? {} : { day: "numeric", month: "short" }),
    hour: "2-digit",
    minute: "2-digit",
  });
}

/** A setting of one of several documents; one that is not set is automatic. */
export function setting(value: unknown): string {
  return value === null || value === undefined ? "not set" : literal(value);
}

/** A property's value as Python writes it. */
export function literal(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) {
    const items = value.map(literal);
    return items.length === 1 ? `(${items[0]},)` : `(${items.join(", ")})`;
  }
  return String(value);
}
