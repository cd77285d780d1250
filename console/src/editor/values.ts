// Property values as text in a field, and back.

import type { PropertyKind, PropertyValue } from "../api/network";
import { literal } from "../ui/format";

export function valueText(value: PropertyValue | undefined): string {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.map(literal).join(", ") : String(value);
}

/** The value that a text means; undefined where it means none. An empty text is null. */
export function parseValue(kind: PropertyKind, text: string): PropertyValue | undefined {
  const trimmed = text.trim();
  if (trimmed === "") return kind === "str" ? "" : null;
  switch (kind) {
    case "int":
      return /^[+-]?\d+$/.test(trimmed) ? Number(trimmed) : undefined;
    case "float":
      return numberOf(trimmed);
    case "ints":
    case "floats": {
      const items = trimmed.replace(/^[([]|[)\]]$/g, "").split(/[\s,x×]+/).filter(Boolean);
      const values = items.map(numberOf);
      if (values.some((value) => value === undefined)) return undefined;
      if (kind === "ints" && !values.every(Number.isInteger)) return undefined;
      return values as number[];
    }
    default:
      return trimmed;
  }
}

function numberOf(text: string): number | undefined {
  const value = Number(text);
  return Number.isFinite(value) ? value : undefined;
}
