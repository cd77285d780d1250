// What the server says of networks: the palette, documents, their analysis and their differences.

export type PropertyValue = null | boolean | number | string | PropertyValue[];

export type PropertyKind =
  | "int"
  | "float"
  | "bool"
  | "str"
  | "ints"
  | "floats"
  | "choice"
  | "network"
  | "file";

export interface PropertySchema {
  name: string;
  kind: PropertyKind;
  required: boolean;
  default: PropertyValue;
  optional: boolean;
  search: boolean;
  doc: string;
  choices: string[] | null;
}

export interface LayerSchema {
  type: string;
  title: string;
  category: string;
  doc: string;
  inputs: { name: string; optional: boolean; variadic: boolean }[];
  outputs: { name: string; variadic: boolean }[];
  properties: PropertySchema[];
  parameters: string[];
  loss: boolean;
  initial?: Properties;
}

export interface LayerCatalog {
  version: number;
  categories: string[];
  layers: LayerSchema[];
}

export type Properties = Record<string, PropertyValue>;

export interface LayerNode {
  id: string;
  type: string;
  name: string;
  x: number;
  y: number;
  properties: Properties;
}

export interface Edge {
  id: string;
  source: string;
  out: number;
  target: string;
  in: string;
}

export interface Network {
  name: string;
  nodes: LayerNode[];
  edges: Edge[];
}

export interface Schedule {
  type: "none" | "step" | "cosine" | "poly" | "exponential";
  [option: string]: PropertyValue;
}

export interface TrainingConfig {
  batch_size: number;
  max_epoch: number;
  seed: number;
  context: string;
  dataset: { train: string | null; valid: string | null; shuffle: boolean };
  optimizer: {
    type: string;
    properties: Properties;
    weight_decay: number;
    schedule: Schedule;
  };
  save_best: boolean;
  early_stop: { epochs: number };
}

export interface Document {
  format: number;
  networks: Network[];
  config: TrainingConfig;
  weights_from?: WeightsFrom;
}

/** What parameters begin with where they fit: those of a trial, or of an imported file. */
export type WeightsFrom = { trial: string; weights?: string } | { blob: string };

export type Edit =
  | { op: "set"; network: string; node: string; property: string; value: PropertyValue }
  | { op: "delete_node"; network: string; node: string }
  | { op: "delete_edge"; network: string; edge: string }
  | { op: "rename"; network: string; node: string; value: string }
  | { op: "add_node"; network: string; value: LayerNode }
  | { op: "add_edge"; network: string; value: Edge };

export interface Problem {
  code: string;
  severity: "error" | "warning";
  message: string;
  network: string;
  node: string | null;
  property: string | null;
  input: string | null;
  fix: { label: string; edits: Edit[] } | null;
}

/** What is counted for a layer and for a network. */
export interface Costs {
  parameters: number;
  fixed_parameters: number;
  multiply_adds: number;
  operations: number;
  adds: number;
  multiplies: number;
  divisions: number;
  exps: number;
  ifs: number;
  bytes: number;
}

export interface OutputSpec {
  name: string;
  shape: number[];
  batch: boolean;
  dtype: string;
}

export interface NodeAnalysis extends Costs {
  outputs: OutputSpec[];
  parameter_shapes: Record<string, number[]>;
  values: Properties;
  errors: Problem[];
}

export interface Totals extends Costs {
  nodes: number;
}

export interface Analysis {
  revision: number;
  ms: number;
  networks: Record<string, { nodes: Record<string, NodeAnalysis>; totals: Totals }>;
  totals: Totals;
  loss: string[];
  outputs: string[];
  problems: Problem[];
  /** What is wrong with the configuration; `where` is "config.batch_size" and the like. */
  config: { where: string; message: string; severity: "error" | "warning" }[];
  trainable: boolean;
}

export interface NetworkDiff {
  nodes: {
    added: { network: string; node: LayerNode }[];
    removed: { network: string; node: LayerNode }[];
    changed: {
      network: string;
      name: string;
      /** null: the same. */
      type: [string, string] | null;
      properties: Record<string, [PropertyValue, PropertyValue]>;
    }[];
  };
  edges: { added: DiffEdge[]; removed: DiffEdge[] };
  config: Record<string, PropertyValue[]>;
}

export interface DiffEdge {
  network: string;
  source: string;
  target: string;
  in: string;
}

export interface ImportReport {
  document: Document;
  name: string;
  report: { severity: "error" | "warning"; message: string }[];
}
