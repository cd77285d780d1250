// The first page: projects, samples, and trials of late.

import { useState } from "react";
import { get, patch, post, remove } from "../api/http";
import type { Project, Sample, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { moment } from "../ui/format";
import { Dialog, Empty, Failure, Field, Loading, Menu } from "../ui/parts";
import { importNetwork } from "../editor/importing";
import { taking } from "../ui/files";
import { TrialLine } from "../training/TrialLine";
import { attempt, done } from "./notices";
import { Link, navigate } from "./router";

export function ProjectList() {
  const { data, error, reload } = useResource<{ projects: Project[] }>("/projects");
  const samples = useResource<{ samples: Sample[] }>("/samples");
  const trials = useResource<{ trials: Trial[] }>("/trials", { sort: "-created", limit: 8 });
  const [naming, setNaming] = useState<Project | "new" | null>(null);

  const [opening, setOpening] = useState<string | null>(null);

  const create = (body: { name: string; sample?: string; document?: unknown }) =>
    attempt(async () => {
      setOpening(body.name);
      try {
        const project = await post<Project>("/projects", body);
        navigate(`/p/${project.id}/edit`);
      } finally {
        setOpening(null);
      }
    });
  const importFile = (file?: File) =>
    attempt(async () => {
      if (file) setOpening(file.name);
      try {
        const found = await importNetwork(file);
        if (!found) return;
        const { name, document } = found;
        const project = await post<Project>("/projects", { name, document });
        navigate(`/p/${project.id}/edit`);
      } finally {
        setOpening(null);
      }
    });
  const name = (text: string) => {
    if (naming === "new") return create({ name: text });
    if (naming) attempt(async () => (await patch(`/projects/${naming.id}`, { name: text }), reload()));
    setNaming(null);
  };

  return (
    <div className="whole" {...taking(importFile)}>
      <div className="page">
        <div className="page-title">
          <h1>Projects</h1>
          <span className="spread" />
          <button className="changes" onClick={() => importFile()}>Import a file</button>
          <button className="primary changes" onClick={() => setNaming("new")}>
            New project
          </button>
        </div>
        {error && <Failure error={error} retry={reload} />}
        {!data && !error && <Loading what="projects" />}
        {opening !== null && <Loading what={opening} />}
        {data?.projects.length === 0 && (
          <Empty title="No projects yet">Start from a sample, or drop a network that you have here.</Empty>
        )}
        <ul className="cards">
          {data?.projects.map((project) => (
            <li key={project.id} className="card">
              <Link to={`/p/${project.id}/edit`} className="card-title">
                {project.name}
              </Link>
              <p className="muted">
                {project.trials} {project.trials === 1 ? "trial" : "trials"} · changed{" "}
                {moment(project.changed)}
              </p>
              <Menu
                className="changes"
                name={`Actions for ${project.name}`}
                label="⋯"
                items={[
                  { label: "Rename", act: () => setNaming(project) },
                  { label: "Copy", act: () => attempt(async () => (await copyOf(project), reload())) },
                  {
                    label: "Move to the trash",
                    danger: true,
                    act: () =>
                      attempt(async () => {
                        await remove(`/projects/${project.id}`);
                        done(`"${project.name}" is in the trash.`);
                        reload();
                      }),
                  },
                ]}
              />
            </li>
          ))}
        </ul>
        {samples.data && samples.data.samples.length > 0 && (
          <section className="changes">
            <h2>Samples</h2>
            <ul className="cards">
              {samples.data.samples.map((sample) => (
                <li key={sample.id} className="card">
                  <button
                    className="card-title link"
                    disabled={opening !== null}
                    onClick={() => create({ name: sample.title, sample: sample.id })}
                  >
                    {sample.title}
                  </button>
                  <p className="muted">{opening === sample.title ? "Loading …" : sample.doc}</p>
                </li>
              ))}
            </ul>
          </section>
        )}
        {trials.data && trials.data.trials.length > 0 && (
          <section>
            <h2>Trials of late</h2>
            <ul className="lines">
              {trials.data.trials.map((trial) => (
                <TrialLine key={trial.id} trial={trial} />
              ))}
            </ul>
          </section>
        )}
        {naming && (
          <NameDialog
            title={naming === "new" ? "New project" : "Rename the project"}
            value={naming === "new" ? "" : naming.name}
            close={() => setNaming(null)}
            accept={name}
          />
        )}
      </div>
    </div>
  );
}

async function copyOf(project: Project): Promise<void> {
  const { projects } = await get<{ projects: Project[] }>("/projects");
  const taken = new Set(projects.map((other) => other.name));
  let name = `${project.name} copy`;
  for (let number = 2; taken.has(name); number++) name = `${project.name} copy ${number}`;
  await post(`/projects/${project.id}/copy`, { name });
}

interface NameDialogProps {
  title: string;
  value: string;
  close: () => void;
  accept: (text: string) => void;
}

export function NameDialog({ title, value, close, accept }: NameDialogProps) {
  const [text, setText] = useState(value);
  return (
    <Dialog title={title} close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (text.trim()) accept(text.trim());
        }}
      >
        <Field label="Name">
          <input autoFocus value={text} onChange={(event) => setText(event.target.value)} />
        </Field>
        <footer>
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button className="primary" disabled={!text.trim()}>
            {value ? "Rename" : "Create"}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
