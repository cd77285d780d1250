// Beside the results: plug-ins that explain a sample or a trial.

import type { Plugin, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { useParameter } from "../app/router";
import { Failure } from "../ui/parts";
import { PluginForm } from "./PluginForm";
import { Trust } from "./Trust";

export function PluginPanel({ trial, row }: { trial: Trial; row: number | null }) {
  const { data, error, reload } = useResource<{ plugins: Plugin[] }>("/plugins");
  const [chosen, choose] = useParameter("plugin");
  const plugins = (data?.plugins ?? []).filter(({ scope }) => scope === "row" || scope === "trial");
  const plugin = plugins.find((one) => one.id === chosen);
  return (
    <section className="section" aria-label="Plug-ins">
      <h2>{row === null ? "Explain" : `Explain row ${row}`}</h2>
      {error && <Failure error={error} retry={reload} />}
      <select
        aria-label="Plug-in"
        value={plugin?.id ?? ""}
        onChange={(event) => choose(event.target.value || null)}
      >
        <option value="">choose a plug-in</option>
        {plugins.map((one) => (
          <option key={one.id} value={one.id}>
            {one.title}
          </option>
        ))}
      </select>
      {plugin && <p className="muted">{plugin.doc}</p>}
      {plugin && !plugin.trusted && <Trust plugin={plugin} trusted={reload} />}
      {plugin?.trusted && (
        <PluginForm key={plugin.id} plugin={plugin} trial={trial.id} row={row} />
      )}
    </section>
  );
}
