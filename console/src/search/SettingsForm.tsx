// What a search may do, and for how long.

import { useState } from "react";
import { post } from "../api/http";
import type { Search, SearchSettings } from "../api/records";
import { useResource } from "../api/resource";
import { attempt } from "../app/notices";
import { navigate } from "../app/router";
import { ensureSaved, useEditor } from "../editor/store";
import { ValueField } from "../editor/ValueField";
import { Field } from "../ui/parts";

const START: SearchSettings = {
  method: "nsga2",
  objectives: ["error", "multiply_adds"],
  rules: null,
  edits: 4,
  attempts: 50,
  hours: 1,
  jobs: 1,
  max_epoch: null,
  multiply_adds: null,
  early_stop: true,
  seed: 0,
};

const METHODS = { nsga2: "Evolution (NSGA-II)", tpe: "Model of the best (TPE)", random: "Random" };

const NUMBERS = [
  ["attempts", "Attempts", "int"],
  ["hours", "Hours at most", "float"],
  ["edits", "Edits per candidate", "int"],
  ["jobs", "Trainings at once", "int"],
  ["max_epoch", "Epochs each", "int"],
] as const;

export function SettingsForm({ project }: { project: string }) {
  const [settings, setSettings] = useState(START);
  const change = (part: Partial<SearchSettings>) => setSettings({ ...settings, ...part });
  const most = settings.multiply_adds?.[1] ?? null;
  const begin = async () => {
    if (!(await ensureSaved())) return;
    const search = await post<Search>("/searches", {
      project,
      version: useEditor.getState().head,
      settings,
    });
    navigate(`/p/${project}/search/${search.id}`);
  };
  return (
    <form
      className="settings fields"
      onSubmit={(event) => {
        event.preventDefault();
        attempt(begin);
      }}
    >
      <Field label="Method">
        <select
          value={settings.method}
          onChange={(event) => change({ method: event.target.value as SearchSettings["method"] })}
        >
          {Object.entries(METHODS).map(([name, title]) => (
            <option key={name} value={name}>
              {title}
            </option>
          ))}
        </select>
      </Field>
      <div className="fields two">
        {NUMBERS.map(([name, title, kind]) => (
          <Field key={name} label={title}>
            <ValueField
              id={`search-${name}`}
              schema={{ kind, choices: null }}
              value={settings[name]}
              automatic={name === "max_epoch" ? "as configured" : ""}
              change={(value) => {
                if (typeof value === "number" || name === "max_epoch") change({ [name]: value });
              }}
            />
          </Field>
        ))}
        <Field label="Multiply-adds up to">
          <ValueField
            id="search-most"
            schema={{ kind: "int", choices: null }}
            value={most}
            automatic="any"
            change={(value) =>
              change({ multiply_adds: typeof value === "number" ? [null, value] : null })
            }
          />
        </Field>
      </div>
      <label className="check">
        <input
          type="checkbox"
          checked={settings.objectives.includes("multiply_adds")}
          onChange={(event) =>
            change({ objectives: event.target.checked ? ["error", "multiply_adds"] : ["error"] })
          }
        />
        Weigh multiply-adds, too
      </label>
      <label className="check">
        <input
          type="checkbox"
          checked={settings.early_stop}
          onChange={(event) => change({ early_stop: event.target.checked })}
        />
        Stop hopeless trainings early
      </label>
      <Rules chosen={settings.rules} choose={(rules) => change({ rules })} />
      <button className="primary changes">Search</button>
    </form>
  );
}

interface RulesProps {
  /** null: all of them. */
  chosen: string[] | null;
  choose: (rules: string[]) => void;
}

function Rules({ chosen, choose }: RulesProps) {
  const { data } = useResource<{ rules: { name: string; doc: string }[] }>("/search/rules");
  if (!data) return null;
  const taken = chosen ?? data.rules.map((rule) => rule.name);
  return (
    <details>
      <summary className="muted">
        {taken.length} of {data.rules.length} rules
      </summary>
      {data.rules.map(({ name, doc }) => (
        <label key={name} className="check" title={doc}>
          <input
            type="checkbox"
            checked={taken.includes(name)}
            onChange={(event) =>
              choose(event.target.checked ? [...taken, name] : taken.filter((rule) => rule !== name))
            }
          />
          {name}
        </label>
      ))}
    </details>
  );
}
