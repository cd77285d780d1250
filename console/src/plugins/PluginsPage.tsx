// All plug-ins: what they do, whether they are trusted, their forms.

import type { Plugin } from "../api/records";
import { useResource } from "../api/resource";
import type { Parts } from "../app/App";
import { Link } from "../app/router";
import { Empty, Failure, Loading } from "../ui/parts";
import { PluginForm } from "./PluginForm";
import { Trust } from "./Trust";

export default function PluginsPage({ parts }: { parts: Parts }) {
  const { data, error, reload } = useResource<{ plugins: Plugin[]; folder: string }>("/plugins");
  const plugin = data?.plugins.find((one) => one.id === parts.plugin);
  return (
    <div className="page">
      <div className="page-title">
        <h1>Plug-ins</h1>
        <span className="spread" />
        {data && <span className="muted mono">{data.folder}</span>}
      </div>
      <p className="muted">
        A plug-in is a Python script with argparse. Put one into the folder above, and it is listed
        here with a form for its arguments.
      </p>
      {error && <Failure error={error} retry={reload} />}
      {!data && !error && <Loading what="plug-ins" />}
      {data?.plugins.length === 0 && <Empty title="No plug-ins" />}
      <div className="split">
        <ul className="lines">
          {data?.plugins.map((one) => (
            <li key={one.id} aria-current={one.id === plugin?.id || undefined}>
              <span>
                <Link to={`/plugins/${one.id}`}>{one.title}</Link>
                <p className="muted">{one.doc}</p>
              </span>
              <span className="spread" />
              <span className={one.error !== null ? "bad" : one.trusted ? "good" : "warn"}>
                {stateOf(one)}
              </span>
            </li>
          ))}
        </ul>
        {plugin && (
          <section className="panel group" aria-label={plugin.title}>
            <h2>{plugin.title}</h2>
            {plugin.error !== null ? (
              <Failure error={{ message: plugin.error, hint: null, where: plugin.file }} />
            ) : plugin.trusted ? (
              <PluginForm key={plugin.id} plugin={plugin} trial={null} row={null} />
            ) : (
              <Trust plugin={plugin} trusted={reload} />
            )}
          </section>
        )}
      </div>
    </div>
  );
}

function stateOf(plugin: Plugin): string {
  if (plugin.error !== null) return "broken";
  if (plugin.shipped) return "comes with nnl";
  return plugin.trusted ? "trusted" : "not trusted";
}
