// What the server says of the document: shapes, costs, errors. One request at a time; while it is
// on its way the newest document waits, so that fast typing costs no more than the server can do.

import { create } from "zustand";
import { ApiError, post } from "../api/http";
import type { Analysis, Document, NodeAnalysis, Problem, Totals } from "../api/network";
import { useEditor } from "./store";

const PAUSE_MS = 30;

interface AnalysisState {
  analysis: Analysis | null;
  /** The document that the analysis is of. */
  of: Document | null;
  error: ApiError | null;
}

export const useAnalysis = create<AnalysisState>()(() => ({
  analysis: null,
  of: null,
  error: null,
}));

let revision = 0;
let running = false;
let timer: number | undefined;

async function analyze(): Promise<void> {
  const document = useEditor.getState().history?.present;
  if (running || !document || isTold()) return;
  running = true;
  try {
    const analysis = await post<Analysis>("/analyze", { document, revision: ++revision });
    // While it was on its way, undo may have gone back to the document that is told of already.
    if (!isTold()) useAnalysis.setState({ analysis, of: document, error: null });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (!isTold()) useAnalysis.setState({ error });
  } finally {
    running = false;
  }
  if (useEditor.getState().history?.present !== document) void analyze();
}

function isTold(): boolean {
  return useAnalysis.getState().of === useEditor.getState().history?.present;
}

/** Do two documents differ in more than where nodes stand? */
export function differs(a: Document | undefined, b: Document | undefined): boolean {
  if (!a || !b || a.config !== b.config || a.networks.length !== b.networks.length) return a !== b;
  return a.networks.some((network, index) => {
    const other = b.networks[index];
    if (network === other) return false;
    if (network.name !== other?.name || network.edges !== other.edges) return true;
    if (network.nodes.length !== other.nodes.length) return true;
    return network.nodes.some((node, position) => {
      const twin = other.nodes[position];
      return (
        node !== twin &&
        (node.id !== twin?.id ||
          node.name !== twin.name ||
          node.type !== twin.type ||
          node.properties !== twin.properties)
      );
    });
  });
}

useEditor.subscribe((state, before) => {
  if (state.history === before.history) return;
  if (state.project !== before.project || !state.history) useAnalysis.setState({ analysis: null, of: null });
  if (!differs(before.history?.present, state.history?.present)) {
    const { of } = useAnalysis.getState();
    if (of === before.history?.present) useAnalysis.setState({ of: state.history?.present ?? null });
    return;
  }
  window.clearTimeout(timer);
  timer = window.setTimeout(() => void analyze(), PAUSE_MS);
});

export function useNodeAnalysis(network: string, node: string): NodeAnalysis | undefined {
  return useAnalysis((state) => state.analysis?.networks[network]?.nodes[node]);
}

export function useTotals(): Totals | undefined {
  return useAnalysis((state) => state.analysis?.totals);
}

const NONE: Problem[] = [];

export function useProblems(): Problem[] {
  return useAnalysis((state) => state.analysis?.problems ?? NONE);
}
