// Networks of files: chosen, read by the server, and what of them is not as in the file.

import { create } from "zustand";
import type { ImportReport } from "../api/network";
import { chooseFile, upload } from "../ui/files";
import { currentDocument, useEditor } from "./store";

const FILES = ".nntxt,.prototxt,.nnp,.onnx,.nnlp,.sdcproj";

/** The import whose report is shown; null when there is nothing to tell. */
export const useImported = create<{ shown: ImportReport | null }>()(() => ({ shown: null }));

/** Reads a file, or one that it asks for; null when none was chosen. */
export async function importNetwork(given?: File): Promise<ImportReport | null> {
  const file = given ?? (await chooseFile(FILES));
  if (!file) return null;
  const found = await upload<ImportReport>("/import", file);
  useImported.setState({ shown: found.report.length > 0 ? found : null });
  return found;
}

/** Puts the network of a file in place of that of the project; one step of the history. */
export async function importHere(given?: File): Promise<void> {
  const found = await importNetwork(given);
  if (!found) return;
  const { config } = currentDocument();
  useEditor.getState().replace({ ...found.document, config });
}
