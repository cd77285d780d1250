// How the parts of a report are written.

import type { ReportHead, ReportRow, ReportValue } from "../api/records";
import { measure } from "../ui/format";

/** What names a measurement, in contrast to what was measured. */
const NAMES = ["backend", "optimizer", "scheme", "ranks", "phase", "model"];

export function titleOf({ kind, settings }: ReportHead): string {
  const { model } = settings;
  return typeof model === "string" ? `${kind} ${model}` : kind;
}

/** The name of what a row is about: those of its names that are not the same in all rows. */
export function nameOf(row: ReportRow, rows: readonly ReportRow[]): string {
  const told = NAMES.filter((name) => row[name] !== undefined);
  const differ = told.filter((name) => rows.some((other) => other[name] !== row[name]));
  return (differ.length > 0 ? differ : told.slice(0, 1)).map((name) => String(row[name])).join(" ");
}

export function valueText(value: ReportValue | undefined): string {
  if (value === undefined || value === null) return "";
  return typeof value === "number" && !Number.isInteger(value) ? measure(value) : String(value);
}

/** Columns of a table, in the order in which rows bring them. */
export function columnsOf(rows: readonly ReportRow[]): string[] {
  return [...new Set(rows.flatMap((row) => Object.keys(row)))];
}
