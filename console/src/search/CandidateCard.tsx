// One candidate: what it is, and the way into the editor.

import { post } from "../api/http";
import type { Candidate, OpenedTrial } from "../api/records";
import { attempt } from "../app/notices";
import { Link, navigate } from "../app/router";
import { useEditor } from "../editor/store";
import { count, percent } from "../ui/format";

interface CandidateCardProps {
  project: string;
  search: string;
  candidate: Candidate;
}

export function CandidateCard({ project, search, candidate }: CandidateCardProps) {
  const open = async () => {
    const path = `/searches/${search}/candidates/${candidate.number}/open`;
    const opened = await post<OpenedTrial>(path);
    useEditor.getState().replace(opened.document);
    navigate(`/p/${project}/edit`);
  };
  return (
    <section className="section">
      <header>
        <h2>Candidate {candidate.number}</h2>
        <span className={`status ${candidate.status}`}>{candidate.status}</span>
      </header>
      <dl className="facts">
        <dt>Validation error</dt>
        <dd>{percent(candidate.error)}</dd>
        <dt>Multiply-adds</dt>
        <dd>{count(candidate.multiply_adds)}</dd>
        <dt>Parameters</dt>
        <dd>{count(candidate.parameters)}</dd>
      </dl>
      {candidate.reason && <p className="warn">{candidate.reason}</p>}
      <h3>Edits</h3>
      <ul className="diff mono">
        {candidate.edits.map((edit, index) => (
          <li key={index} title={edit.rule}>
            {edit.text}
          </li>
        ))}
        {candidate.edits.length === 0 && <li className="muted">none: the network itself</li>}
      </ul>
      <button className="primary" onClick={() => attempt(open)}>
        Open in Edit
      </button>
      {candidate.trial && (
        <Link className="button" to={`/p/${project}/train/${candidate.trial}`}>
          Its trial
        </Link>
      )}
    </section>
  );
}
