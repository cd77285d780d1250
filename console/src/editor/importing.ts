// Networks of files: chosen, read by the server, and what of them is not as in the file.

import { create } from "zustand";
import type { ImportReport } from "../api/network";
import { chooseFile, upload } from "../ui/files";

const FILES = ".nntxt,.prototxt,.nnp,.onnx,.nnlp,.sdcproj";

/** The import whose report is shown; null when there is nothing to tell. */
export const useImported = create<{ shown: ImportReport | null }>()(() => ({ shown: null }));

/** Asks for a file and reads it; null when none was chosen. */
export async function importNetwork(): Promise<ImportReport | null> {
  const file = await chooseFile(FILES);
  if (!file) return null;
  const found = await upload<ImportReport>("/import", file);
  useImported.setState({ shown: found.report.length > 0 ? found : null });
  return found;
}
