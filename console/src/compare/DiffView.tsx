// What one network has that another has not.

import type { DiffEdge, NetworkDiff } from "../api/network";
import { setting } from "../ui/format";

export function DiffView({ diff }: { diff: NetworkDiff }) {
  const { nodes, edges, config } = diff;
  const changes = Object.entries(config);
  const isEmpty =
    nodes.added.length + nodes.removed.length + nodes.changed.length === 0 &&
    edges.added.length + edges.removed.length + changes.length === 0;
  if (isEmpty) return <p className="muted">The same network and the same configuration.</p>;
  const edge = ({ source, target, in: input }: DiffEdge) => `${source} → ${target}.${input}`;
  return (
    <ul className="diff mono">
      {nodes.removed.map(({ node }) => (
        <li key={`-${node.name}`} className="bad">
          − {node.name} <span className="muted">{node.type}</span>
        </li>
      ))}
      {nodes.added.map(({ node }) => (
        <li key={`+${node.name}`} className="good">
          + {node.name} <span className="muted">{node.type}</span>
        </li>
      ))}
      {nodes.changed.map((node) => (
        <li key={`~${node.name}`} className="warn">
          ~ {node.name}
          {node.type && ` ${node.type[0]} → ${node.type[1]}`}
          {Object.entries(node.properties).map(([name, [before, after]]) => (
            <span key={name}>
              {" "}
              {name} {setting(before)} → {setting(after)}
            </span>
          ))}
        </li>
      ))}
      {edges.removed.map((one) => (
        <li key={`-${edge(one)}`} className="bad">
          − {edge(one)}
        </li>
      ))}
      {edges.added.map((one) => (
        <li key={`+${edge(one)}`} className="good">
          + {edge(one)}
        </li>
      ))}
      {changes.map(([name, [before, after]]) => (
        <li key={name} className="warn">
          ~ {name} {setting(before)} → {setting(after)}
        </li>
      ))}
    </ul>
  );
}
