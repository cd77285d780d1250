// Trials of a project: the list, the curves of one with others over it, its log and results.

import { useMemo } from "react";
import type { Parts } from "../app/App";
import { useParameter } from "../app/router";
import { useEditor } from "../editor/store";
import { Empty, Failure, Loading, Tabs } from "../ui/parts";
import { CurveControls, useCurveSettings } from "./CurveControls";
import { CurveGroups } from "./CurveGroups";
import { useLiveTrial } from "./live";
import { LogView } from "./LogView";
import { useOtherSeries } from "./overlay";
import { ProfileTable } from "./ProfileTable";
import { start } from "./start";
import { TradeOff } from "./TradeOff";
import { TrialDetails } from "./TrialDetails";
import { TrialList } from "./TrialList";

const VIEWS = [
  { id: "curves", title: "Curves" },
  { id: "tradeoff", title: "Trade-off" },
] as const;

export default function TrainingPage({ parts }: { parts: Parts }) {
  const project = useEditor((state) => state.project);
  const [view, setView] = useParameter("view");
  const [compared, setCompared] = useParameter("with");
  const ids = useMemo(() => compared?.split(",").filter(Boolean) ?? [], [compared]);
  const id = parts.trial ?? null;
  const live = useLiveTrial(id);
  const others = useOtherSeries(ids.filter((other) => other !== id));
  const settings = useCurveSettings();
  const { trial, series } = live;
  const shown = useMemo(
    () => (trial ? [{ trial, series }, ...others] : others),
    [trial, series, others],
  );
  const isTradeOff = view === "tradeoff";

  return (
    <div className="editor training">
      <TrialList
        project={project?.id ?? ""}
        current={id}
        compared={ids}
        compare={(next) => setCompared(next.length > 0 ? next.join(",") : null)}
      />
      <div className="centre">
        <div className="network-bar">
          <Tabs
            label="View"
            tabs={VIEWS}
            current={isTradeOff ? "tradeoff" : "curves"}
            choose={(next) => setView(next === "curves" ? null : next)}
          />
          {!isTradeOff && <CurveControls settings={settings} />}
        </div>
        {isTradeOff ? (
          <TradeOff project={project?.id ?? ""} current={id} />
        ) : (
          <div className="scroll curve-list">
            {live.error && <Failure error={live.error} />}
            {id !== null && !trial && !live.error && <Loading what="the trial" />}
            {id === null && ids.length === 0 && (
              <Empty title="Choose a trial">
                <p>Its curves and its log are shown here.</p>
                <p>
                  <button className="primary changes" onClick={() => start("train")}>
                    Train the network
                  </button>
                </p>
              </Empty>
            )}
            <CurveGroups trials={shown} settings={settings} />
            {trial?.kind === "profile" && trial.status === "finished" && (
              <ProfileTable trial={trial} />
            )}
            {trial?.status === "running" && Object.keys(series).length === 0 && (
              <Empty title="The first points are on their way" />
            )}
            {trial?.status === "queued" && <Empty title="Waits until another training ends" />}
            {trial && <LogView key={trial.id} trial={trial} />}
          </div>
        )}
      </div>
      {trial ? <TrialDetails trial={trial} take={live.set} /> : <aside className="right" />}
    </div>
  );
}
