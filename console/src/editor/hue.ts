// The colour of a layer is that of its category.

import type { LayerCatalog } from "../api/network";
import { useEditor } from "./store";

const HUES = 12;

/** A number that the style sheet has a colour for; layers of no category share the first. */
export function hueOf(catalog: LayerCatalog | null, category: string | undefined): number {
  const index = category === undefined ? -1 : (catalog?.categories.indexOf(category) ?? -1);
  return index < 0 ? 0 : index % HUES;
}

export function useHue(type: string): number {
  return useEditor((state) => hueOf(state.catalog, state.layers.get(type)?.category));
}
