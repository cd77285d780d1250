// The project that is open: its document with undo and redo, what is selected in it, and the
// version that the server has.

import { create } from "zustand";
import { ApiError, address, get, send } from "../api/http";
import type { Document, LayerCatalog } from "../api/network";
import type { Project, Version } from "../api/records";
import { arrangeWhereNeeded } from "../graph/layout";
import { closed, record, redo, start, undo, type History } from "../graph/history";
import { layersByType, type Layers } from "../graph/ports";

/** What is kept of a project while another one is open. */
interface Draft {
  history: History<Document>;
  saved: Document;
  head: string;
}

interface EditOptions {
  /** Repeated edits of one thing, such as typing, are one step of undo. */
  merge?: string;
  select?: readonly string[];
  network?: string;
}

export interface EditorState {
  project: Project | null;
  catalog: LayerCatalog | null;
  layers: Layers;
  history: History<Document> | null;
  saved: Document | null;
  head: string;
  /** The version that somebody else saved meanwhile. */
  conflict: string | null;
  saving: boolean;
  network: string;
  selected: ReadonlySet<string>;
  /** Another number: the network is shown from its beginning again. */
  view: number;

  open: (id: string) => Promise<void>;
  edit: (change: (document: Document) => Document, options?: EditOptions) => void;
  undo: () => void;
  redo: () => void;
  show: (network: string, node?: string) => void;
  select: (ids: readonly string[]) => void;
  /** Takes a whole document, as one step: an import, an old trial. */
  replace: (document: Document) => void;
  save: (options?: { over?: string; note?: string }) => Promise<boolean>;
  takeTheirs: () => Promise<void>;
}

const drafts = new Map<string, Draft>();

async function fetchDocument(id: string): Promise<{ document: Document; head: string }> {
  const response = await send("GET", address(`/projects/${id}/document`));
  return {
    document: (await response.json()) as Document,
    head: (response.headers.get("ETag") ?? "").replace(/^W\/|"/g, ""),
  };
}

const mainName = (document: Document) => document.networks[0]?.name ?? "main";

export const useEditor = create<EditorState>()((set, state) => {
  const step = (history: History<Document>) => {
    const names = new Set(history.present.networks.map((network) => network.name));
    const network = names.has(state().network) ? state().network : mainName(history.present);
    const shown = history.present.networks.find((other) => other.name === network);
    const ids = new Set(shown?.nodes.map((node) => node.id));
    const selected = new Set([...state().selected].filter((id) => ids.has(id)));
    set({ history, network, selected });
  };
  return {
    project: null,
    catalog: null,
    layers: new Map(),
    history: null,
    saved: null,
    head: "",
    conflict: null,
    saving: false,
    network: "main",
    selected: new Set(),
    view: 0,

    open: async (id) => {
      const { project: old, history, saved, head, catalog } = state();
      if (old?.id === id && history) return;
      if (old && history && saved) drafts.set(old.id, { history, saved, head });
      set({ project: null, history: null, conflict: null, selected: new Set() });
      const draft = drafts.get(id);
      const [project, fetched, layers] = await Promise.all([
        get<Project>(`/projects/${id}`),
        draft ?? fetchDocument(id),
        catalog ?? get<LayerCatalog>("/schema/layers"),
      ]);
      if (!("document" in fetched)) {
        set({ ...fetched, project, network: mainName(fetched.history.present) });
      } else {
        const document = arrangeWhereNeeded(fetched.document);
        set({
          project,
          history: start(document),
          saved: document,
          head: fetched.head,
          network: mainName(document),
        });
      }
      set({ catalog: layers, layers: layersByType(layers) });
    },

    edit: (change, options = {}) => {
      const { history } = state();
      if (!history) return;
      const document = change(history.present);
      set({ history: record(history, document, options.merge) });
      if (options.network !== undefined) set({ network: options.network });
      if (options.select) set({ selected: new Set(options.select) });
    },
    undo: () => {
      const { history } = state();
      if (history) step(undo(history));
    },
    redo: () => {
      const { history } = state();
      if (history) step(redo(history));
    },
    show: (network, node) =>
      set({ network, selected: node === undefined ? new Set() : new Set([node]) }),
    select: (ids) => set({ selected: new Set(ids) }),
    replace: (document) => {
      const arranged = arrangeWhereNeeded(document);
      state().edit(() => arranged, { network: mainName(arranged), select: [] });
      set({ view: state().view + 1 });
    },

    save: async (options = {}) => {
      const { project, history, head } = state();
      if (!project || !history) return false;
      const document = history.present;
      set({ saving: true, history: closed(history) });
      try {
        const response = await send("POST", address(`/projects/${project.id}/versions`), {
          body: { document, note: options.note },
          headers: { "If-Match": `"${options.over ?? head}"` },
        });
        const version = (await response.json()) as Version;
        set({ saved: document, head: version.id, conflict: null });
        return true;
      } catch (error) {
        if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
        set({ conflict: error.where ?? "" });
        return false;
      } finally {
        set({ saving: false });
      }
    },
    takeTheirs: async () => {
      const { project } = state();
      if (!project) return;
      const { document, head } = await fetchDocument(project.id);
      state().replace(document);
      set({ saved: state().history?.present ?? document, head, conflict: null });
    },
  };
});

export function isUnsaved(state: EditorState): boolean {
  return state.history !== null && state.history.present !== state.saved;
}

/** The document of the open project; only for components that are shown while one is open. */
export function useDocument(): Document {
  const document = useEditor((state) => state.history?.present);
  if (!document) throw new Error("no project is open");
  return document;
}

export function currentDocument(): Document {
  const document = useEditor.getState().history?.present;
  if (!document) throw new Error("no project is open");
  return document;
}

/** Saves where there is something to save; false when somebody else saved meanwhile. */
export async function ensureSaved(): Promise<boolean> {
  return isUnsaved(useEditor.getState()) ? useEditor.getState().save() : true;
}

window.addEventListener("beforeunload", (event) => {
  if (isUnsaved(useEditor.getState())) event.preventDefault();
});
