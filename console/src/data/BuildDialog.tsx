// A zip of pictures as data sets: a folder for every class, or boxes in a text file beside each.

import { useState } from "react";
import type { Query } from "../api/http";
import type { Dataset } from "../api/records";
import { attempt, warn } from "../app/notices";
import { chooseFile, upload } from "../ui/files";
import { Dialog, Field } from "../ui/parts";

export type BuildKind = "image_classification" | "object_detection";

const TITLES: Record<BuildKind, string> = {
  image_classification: "Pictures in a folder for every class",
  object_detection: "Pictures with boxes",
};

const HINTS: Record<BuildKind, string> = {
  image_classification: "A zip with a folder of pictures for every class. Labels are numbered by the folders' names.",
  object_detection:
    "A zip with NAME.txt beside NAME.png: lines of class, middle (x, y), width and height of a box, as shares of the picture.",
};

interface NumberProps {
  label: string;
  value: string;
  change: (value: string) => void;
  placeholder?: string;
  least?: number;
}

function NumberField({ label, value, change, placeholder, least = 1 }: NumberProps) {
  return (
    <Field label={label}>
      <input
        type="number"
        min={least}
        value={value}
        placeholder={placeholder}
        onChange={(event) => change(event.target.value)}
      />
    </Field>
  );
}

interface Built {
  datasets: Dataset[];
  /** Names of the pictures that could not be read. */
  left_out: string[];
}

interface BuildDialogProps {
  kind: BuildKind;
  close: () => void;
  done: (datasets: Dataset[]) => void;
}

export function BuildDialog({ kind, close, done }: BuildDialogProps) {
  const [form, setForm] = useState({
    width: "",
    height: "",
    channels: "",
    mode: "trimming",
    share: "20",
    seed: "0",
    classes: "1",
    anchors: "5",
    grid: "16",
  });
  const [isBusy, setBusy] = useState(false);
  const set = (name: keyof typeof form) => (value: string) => setForm({ ...form, [name]: value });

  const build = async () => {
    const file = await chooseFile(".zip");
    if (!file) return;
    setBusy(true);
    try {
      const { share, classes, anchors, grid, ...rest } = form;
      const boxes = kind === "object_detection" ? { classes, anchors, grid } : {};
      const given = Object.entries({ kind, ...rest, ...boxes, split: Number(share) / 100 });
      // What is left empty is the server's choice: the size of the first picture.
      const query: Query = Object.fromEntries(given.filter(([, value]) => value !== ""));
      const built = await upload<Built>("/datasets/build", file, query);
      done(built.datasets);
      const [first, ...others] = built.left_out;
      if (first !== undefined) {
        const more = others.length > 0 ? ` and ${others.length} more` : "";
        warn(`${first}${more} could not be read: left out of the data set`);
      }
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={TITLES[kind]} close={close}>
      <form
        className="fields"
        onSubmit={(event) => {
          event.preventDefault();
          attempt(build);
        }}
      >
        <p className="muted">{HINTS[kind]}</p>
        <div className="fields two">
          <NumberField label="Width" value={form.width} change={set("width")} placeholder="of the first picture" />
          <NumberField label="Height" value={form.height} change={set("height")} placeholder="of the first picture" />
          <Field label="Channels">
            <select value={form.channels} onChange={(event) => set("channels")(event.target.value)}>
              <option value="">of the first picture</option>
              <option value="1">1, grey</option>
              <option value="3">3, colours</option>
            </select>
          </Field>
          <Field label="Other proportions are">
            <select value={form.mode} onChange={(event) => set("mode")(event.target.value)}>
              <option value="trimming">cut</option>
              <option value="padding">filled with black</option>
              <option value="resize">stretched</option>
            </select>
          </Field>
          <NumberField label="For validation, in percent" value={form.share} change={set("share")} least={0} />
          <NumberField label="Seed of the order" value={form.seed} change={set("seed")} least={0} />
        </div>
        {kind === "object_detection" && (
          <div className="fields three">
            <NumberField label="Classes" value={form.classes} change={set("classes")} />
            <NumberField label="Anchors" value={form.anchors} change={set("anchors")} />
            <NumberField label="Pixels of a cell" value={form.grid} change={set("grid")} />
          </div>
        )}
        <footer>
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button className="primary" disabled={isBusy}>
            {isBusy ? "Building …" : "Choose a zip"}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
