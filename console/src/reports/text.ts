// How the parts of a report are written.

import type { ReportColumn, ReportHead, ReportRow, ReportValue } from "../api/records";
import { bytes, measure, percent } from "../ui/format";

export function titleOf({ kind, settings }: ReportHead): string {
  const { model } = settings;
  return typeof model === "string" ? `${kind} ${model}` : kind;
}

/** What names a row: the values of these columns, as far as they are not the same in all rows. */
export function nameOf(
  row: ReportRow,
  rows: readonly ReportRow[],
  columns: readonly string[],
): string {
  const told = columns.filter((name) => row[name] !== undefined);
  const differ = told.filter((name) => rows.some((other) => other[name] !== row[name]));
  return (differ.length > 0 ? differ : told.slice(0, 1)).map((name) => String(row[name])).join(" ");
}

export function headOf({ text, unit }: ReportColumn): string {
  return unit ? `${text} (${unit})` : text;
}

export function valueText(value: ReportValue | undefined): string {
  if (value === undefined || value === null) return "";
  return typeof value === "number" && !Number.isInteger(value) ? measure(value) : String(value);
}

/** A number with its unit, as it is read. */
export function quantity(value: number, unit: string): string {
  if (unit === "s") return value < 1 ? `${measure(value * 1000)} ms` : `${measure(value)} s`;
  if (unit === "share") return percent(value);
  if (unit === "bytes") return bytes(value);
  return unit ? `${measure(value)} ${unit}` : measure(value);
}
