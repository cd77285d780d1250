// A trained network as a file, in every format that there is.

import { attempt } from "../app/notices";
import { download } from "../ui/files";
import type { MenuItem } from "../ui/parts";

const FORMATS: [label: string, format: string][] = [
  ["NNabla with weights (.nnp)", "nnp"],
  ["NNabla text (.nntxt)", "nntxt"],
  ["ONNX", "onnx"],
  ["nnl program (.nnlp)", "nnlp"],
  ["NNB for microcontrollers", "nnb"],
  ["TensorFlow Lite", "tflite"],
  ["Python code", "python"],
  ["Page (HTML)", "html"],
];

/** Items of a menu: the network with the weights that were best, or those of the last epoch. */
export function downloads(trial: string): MenuItem[] {
  const item = (label: string, format: string, weights: string) => ({
    label,
    act: () => attempt(() => download(`/trials/${trial}/export`, { format, weights })),
  });
  return [
    ...FORMATS.map(([label, format]) => item(`Download: ${label}`, format, "best")),
    item("Download: last weights (.nnp)", "nnp", "last"),
  ];
}
