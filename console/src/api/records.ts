// What the server keeps: projects, data sets, trials, searches, plugins.

import type { Document, PropertyValue, WeightsFrom } from "./network";

export interface ErrorBody {
  code: string;
  message: string;
  hint: string | null;
  where: string | null;
}

export interface Session {
  read_only: boolean;
  version: string;
  folder: string;
  limits: { upload_bytes: number; children: number };
}

export interface SystemInfo {
  versions: Record<string, string>;
  platform: string;
  cpus: number;
  memory_bytes: number;
  backends: string[];
  contexts: string[];
  devices: { name: string; memory_bytes: number }[];
  optional: Record<string, boolean>;
}

export interface Project {
  id: string;
  name: string;
  created: number;
  changed: number;
  head: string;
  trials: number;
  deleted: boolean;
}

export interface Sample {
  id: string;
  title: string;
  doc: string;
}

export interface Version {
  id: string;
  parent: string | null;
  created: number;
  note: string | null;
  trials?: number;
}

export interface Dataset {
  id: string;
  name: string;
  rows: number;
  created: number;
  columns: { name: string; type: string; shape: number[] | null }[];
  sha256: string;
  bytes: number;
  missing: boolean;
}

/** A data set that comes with a package. */
export interface DataSample {
  id: string;
  title: string;
  classes: string[];
}

export interface Cell {
  text: string;
  kind: "image" | "number" | "text" | "vector" | "array";
}

export interface ColumnStats {
  name: string;
  type: string;
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  distinct: number | null;
  histogram: { edges: number[]; counts: number[] } | null;
  values: { value: string | number; count: number }[] | null;
}

export type TrialStatus =
  | "queued"
  | "running"
  | "suspended"
  | "finished"
  | "failed"
  | "interrupted";

export type TrialKind = "train" | "evaluate" | "profile" | "infer" | "import";

export interface Trial {
  id: string;
  project: string;
  number: number;
  name: string;
  kind: TrialKind;
  status: TrialStatus;
  version: string;
  seed: number;
  created: number;
  started: number | null;
  ended: number | null;
  epoch: number | null;
  max_epoch: number | null;
  eta_s: number | null;
  parameters: number | null;
  multiply_adds: number | null;
  best: { name: string; value: number; epoch: number } | null;
  last: Record<string, number> | null;
  note: string | null;
  tags: string[];
  pinned: boolean;
  locked: boolean;
  pareto: boolean;
  weights_from: WeightsFrom | null;
  search: string | null;
  search_number: number | null;
  error: ErrorBody | null;
  sparkline?: number[];
}

export interface Series {
  x: number[];
  y: number[];
  epoch?: number[];
}

export interface Artifact {
  id: string;
  kind: string;
  name: string;
  bytes: number;
  created?: number;
}

export interface Averages {
  precision: number;
  recall: number;
  f1: number;
}

export interface Confusion {
  label: string;
  output: string;
  classes: string[];
  counts: number[][];
  accuracy: number;
  precision: number[];
  recall: number[];
  f1: number[];
  support: number[];
  macro: Averages;
  weighted: Averages;
}

export interface ResultRow {
  index: number;
  cells: Cell[];
  label: string | number | null;
  predicted: string | number | null;
  likelihood: number | null;
  loss: number | null;
  outputs: number[];
}

export interface OpenedTrial {
  version: string;
  document: Document;
}

export interface SearchSettings {
  method: "nsga2" | "tpe" | "random";
  objectives: ("error" | "multiply_adds")[];
  rules: string[] | null;
  edits: number;
  attempts: number;
  hours: number;
  jobs: number;
  max_epoch: number | null;
  multiply_adds: [number | null, number | null] | null;
  early_stop: boolean;
  seed: number;
}

export interface Search {
  id: string;
  project: string;
  version: string;
  status: "running" | "finished" | "cancelled" | "failed";
  created: number;
  ended: number | null;
  settings: SearchSettings;
  attempts: number;
  rejected: number;
  best: { error: number; trial: string } | null;
}

export interface Candidate {
  number: number;
  trial: string | null;
  error: number | null;
  multiply_adds: number | null;
  parameters: number | null;
  status: "rejected" | "running" | "finished" | "pruned" | "failed";
  edits: { rule: string; node: string; text: string }[];
  reason: string | null;
}

export interface Front {
  candidates: Candidate[];
  front: number[];
  base: Candidate | null;
}

export interface Plugin {
  id: string;
  title: string;
  doc: string;
  file: string;
  shipped: boolean;
  trusted: boolean;
  scope: "row" | "trial" | "network" | "dataset";
  sha256: string;
  /** Why the file is no plug-in; null for those that are. */
  error: string | null;
}

export interface PluginField {
  name: string;
  flag: string;
  kind: string;
  default: PropertyValue;
  required: boolean;
  doc: string;
  choices: string[] | null;
}

export interface PluginRun {
  id: string;
  plugin: string;
  status: "running" | "finished" | "failed";
  created: number;
  ended: number | null;
  log: string;
  artifacts: Artifact[];
  error: ErrorBody | string | null;
}

export interface QuickReport {
  /** null where a function is not supported. */
  file: string | null;
  format: string;
  report: { severity: "error" | "warning"; message: string }[];
  functions: { type: string; count: number; supported: boolean; reason: string | null }[];
  supported: boolean;
  inputs: { name: string; shape: number[] }[];
  outputs: { name: string; shape: number[] }[];
  parameters: number | null;
  multiply_adds: number | null;
}

export type ReportValue = string | number | boolean | null;
export type ReportRow = Record<string, ReportValue>;

/** What a report of `nnl bench` is about; its rows come with the whole report. */
export interface ReportHead {
  id: string;
  kind: string;
  created: string;
  ended: string;
  command: string;
  backends: string[];
  count: number;
  settings: Record<string, unknown>;
  versions: Record<string, unknown>;
  hardware: Record<string, unknown>;
}

export interface ReportColumn {
  name: string;
  text: string;
  unit: string;
  /** Whether it tells rows apart. */
  key: boolean;
  /** The columns with the ends of the interval around its values. */
  interval?: [string, string];
}

/** What can be drawn of rows; `by` names the columns whose values name one line or group. */
export interface ReportPlot {
  form: "lines" | "points" | "bars" | "counts";
  x: string;
  y: string;
  by: string[];
}

export interface ReportTable {
  rows: ReportRow[];
  columns: ReportColumn[];
}

export interface Report extends ReportHead, ReportTable {
  plots: ReportPlot[];
}

/** An array of one sample: its numbers unless they are too many, and a picture of it. */
export interface Tensor {
  name: string;
  shape: number[];
  values: (number | null)[] | null;
  picture: string | null;
}

/** What a network was given of one sample, and what it said. */
export interface Answer {
  inputs: Tensor[];
  outputs: Tensor[];
}

/** A language model in the console's folder. */
export interface ModelHead {
  id: string;
  kind: "folder" | "nnlp" | "gguf";
  bytes: number;
  open: boolean;
}

/** What an open model can be asked for. */
export interface ModelFacts {
  id: string;
  completions: boolean;
  chat: boolean;
  attention: boolean;
}

export interface ChatMessage {
  role: "user" | "assistant";
  content: string;
}

/** One event of a text that is being written; those of conversations have a delta. */
export interface WrittenEvent {
  choices?: { text?: string; delta?: { content?: string }; finish_reason: string | null }[];
  usage?: { completion_tokens: number };
  error?: { message: string };
}

/** How much each token of a text, a row of weights, takes from which. */
export interface Attention {
  tokens: string[];
  layers: number;
  heads: number;
  layer: number;
  head: number;
  weights: number[][];
}
