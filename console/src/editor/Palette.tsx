// All layers by category. Drag one to a place, or double-click (Enter) to put it below the last.

import { useMemo, useState } from "react";
import type { LayerSchema, Properties } from "../api/network";
import { append } from "./commands";
import { hueOf } from "./hue";
import { useDocument, useEditor } from "./store";

/** What a drag from the palette carries: the type, and for a unit its network on a second line. */
export const DRAG_TYPE = "application/x-nnl-layer";

export function Palette() {
  const catalog = useEditor((state) => state.catalog);
  const [text, setText] = useState("");
  const found = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (layer: LayerSchema) => {
      const all = `${layer.title} ${layer.type} ${layer.category} ${layer.doc}`.toLowerCase();
      return layer.type !== "Unit" && words.every((word) => all.includes(word));
    };
    return (catalog?.categories ?? [])
      .map((category) => ({
        category,
        layers: (catalog?.layers ?? []).filter((layer) => layer.category === category && fits(layer)),
      }))
      .filter(({ layers }) => layers.length > 0);
  }, [catalog, text]);

  return (
    <section className="palette" aria-label="Layers">
      <div className="search">
        <input
          type="search"
          placeholder="Find a layer"
          aria-label="Find a layer"
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            const layers = found.flatMap((category) => category.layers);
            const wanted = layers.find((layer) => isCalled(layer, text)) ?? layers[0];
            if (event.key === "Enter" && wanted) append(wanted);
          }}
        />
      </div>
      <div className="scroll">
        {text === "" && <Units />}
        {found.map(({ category, layers }) => (
          <div key={category} data-hue={hueOf(catalog, category)}>
            <h3>{category}</h3>
            <ul>
              {layers.map((layer) => (
                <PaletteItem key={layer.type} layer={layer} title={layer.title} />
              ))}
            </ul>
          </div>
        ))}
        {found.length === 0 && <p className="none muted">No layer is called so.</p>}
      </div>
    </section>
  );
}

/** relu is ReLU before CReLU, which has it in its name too. */
function isCalled({ title, type }: LayerSchema, text: string): boolean {
  const name = text.trim().toLowerCase();
  return [title, type, type.slice(type.indexOf(".") + 1)].some((one) => one.toLowerCase() === name);
}

function Units() {
  const document = useDocument();
  const shown = useEditor((state) => state.network);
  const layer = useEditor((state) => state.layers.get("Unit"));
  const units = document.networks.slice(1).filter((network) => network.name !== shown);
  if (!layer || units.length === 0) return null;
  return (
    <div data-hue={0}>
      <h3>Units of this project</h3>
      <ul>
        {units.map(({ name }) => (
          <PaletteItem key={name} layer={layer} title={name} properties={{ network: name }} />
        ))}
      </ul>
    </div>
  );
}

interface ItemProps {
  layer: LayerSchema;
  title: string;
  properties?: Properties & { network: string };
}

function PaletteItem({ layer, title, properties }: ItemProps) {
  const data = properties ? `${layer.type}\n${properties.network}` : layer.type;
  return (
    <li>
      <button
        draggable
        title={`${layer.type}\n${layer.doc}`}
        data-layer={layer.type}
        onDragStart={(event) => event.dataTransfer.setData(DRAG_TYPE, data)}
        onDoubleClick={() => append(layer, properties)}
        // A click that no pointer made is the keyboard's.
        onClick={(event) => event.detail === 0 && append(layer, properties)}
      >
        {title}
      </button>
    </li>
  );
}
