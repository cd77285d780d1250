// Files from and to the user's disk.

import type { DragEvent as ReactDragEvent } from "react";
import { address, send, type Query } from "../api/http";

/** Asks for a file; null when the dialog is closed without one. */
export function chooseFile(accept: string): Promise<File | null> {
  return new Promise((resolve) => {
    const input = document.createElement("input");
    input.type = "file";
    input.accept = accept;
    input.addEventListener("change", () => resolve(input.files?.[0] ?? null));
    input.addEventListener("cancel", () => resolve(null));
    input.click();
  });
}

function hasFiles(transfer: DataTransfer | null): boolean {
  return transfer?.types.includes("Files") ?? false;
}

/** What makes an element take a file that is dropped on it. */
export function taking(take: (file: File) => void) {
  return {
    onDragOver: (event: ReactDragEvent) => {
      if (hasFiles(event.dataTransfer)) event.preventDefault();
    },
    onDrop: (event: ReactDragEvent) => {
      const [file] = event.dataTransfer.files;
      if (!file) return;
      event.preventDefault();
      take(file);
    },
  };
}

/** A file that is dropped where nothing takes it would open in place of this page. */
export function refuseOtherFiles(): void {
  for (const kind of ["dragover", "drop"] as const) {
    window.addEventListener(kind, (event) => {
      if (event.defaultPrevented || !hasFiles(event.dataTransfer)) return;
      event.preventDefault();
      if (event.dataTransfer) event.dataTransfer.dropEffect = "none";
    });
  }
}

export async function upload<T>(path: string, file: File, query: Query = {}): Promise<T> {
  const response = await send("POST", address(path, { name: file.name, ...query }), { body: file });
  return (await response.json()) as T;
}

/** Fetches a file and saves it under the name that the server gives it. */
export async function download(path: string, query: Query = {}): Promise<void> {
  const response = await send("GET", address(path, query));
  const named = response.headers.get("Content-Disposition") ?? "";
  saveAs(await response.blob(), /filename="([^"]+)"/.exec(named)?.[1] ?? "download");
}

export function saveAs(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
