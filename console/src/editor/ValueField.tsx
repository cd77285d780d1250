// One field for a property of any kind. What is typed is taken as soon as it means a value.

import { useState } from "react";
import type { PropertyKind, PropertySchema, PropertyValue } from "../api/network";
import { parseValue, valueText } from "./values";

interface ValueFieldProps {
  id: string;
  schema: Pick<PropertySchema, "kind" | "choices">;
  value: PropertyValue | undefined;
  /** What stands there in grey while the value is automatic. */
  automatic: string;
  invalid?: boolean;
  change: (value: PropertyValue) => void;
}

const WANTED: Partial<Record<PropertyKind, string>> = {
  int: "A whole number is wanted.",
  float: "A number is wanted.",
  ints: "Whole numbers with commas between them are wanted.",
  floats: "Numbers with commas between them are wanted.",
};

export function ValueField({ id, schema, value, automatic, invalid, change }: ValueFieldProps) {
  const [typed, setTyped] = useState<string | null>(null);
  if (schema.kind === "bool") {
    return (
      <input
        id={id}
        type="checkbox"
        checked={value === true}
        onChange={(event) => change(event.target.checked)}
      />
    );
  }
  if (schema.choices) {
    return (
      <select id={id} value={valueText(value)} onChange={(event) => change(event.target.value || null)}>
        {(value === null || value === undefined) && <option value="">{automatic || "–"}</option>}
        {schema.choices.map((choice) => (
          <option key={choice}>{choice}</option>
        ))}
      </select>
    );
  }
  const wrong = typed !== null && parseValue(schema.kind, typed) === undefined;
  return (
    <>
      <input
        id={id}
        value={typed ?? valueText(value)}
        placeholder={automatic}
        spellCheck={false}
        aria-invalid={wrong || invalid}
        title={wrong ? WANTED[schema.kind] : undefined}
        onChange={(event) => {
          setTyped(event.target.value);
          const parsed = parseValue(schema.kind, event.target.value);
          if (parsed !== undefined) change(parsed);
        }}
        onBlur={() => setTyped(null)}
      />
      {/* By a style, for text here would become part of the label; readers have the title. */}
      {wrong && <span className="bad wanted" data-text={WANTED[schema.kind]} />}
    </>
  );
}
