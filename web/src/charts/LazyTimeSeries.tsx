import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

import { noteMissingCode } from "../shell/lazy";
import "./charts.css";
import type { TimeSeriesProps } from "./TimeSeries";

let loaded: ComponentType<TimeSeriesProps> | null = null;

/** TimeSeries, fetched with uPlot when the first one is shown; it has its place on the page from the start. */
export function LazyTimeSeries(props: TimeSeriesProps) {
  const [, redraw] = useState(0);
  useEffect(() => {
    if (loaded) return;
    let mine = true;
    import("./TimeSeries").then((module) => {
      loaded = module.TimeSeries;
      if (mine) redraw((n) => n + 1);
    }, noteMissingCode);
    return () => {
      mine = false;
    };
  }, []);
  const Loaded = loaded;
  if (Loaded) return <Loaded {...props} />;
  return (
    <section class="chart">
      <header class="chart-head">
        <div class="chart-titles">
          <h2 class="chart-title">{props.title}</h2>
          {props.answer ? <p class="chart-answer">{props.answer}</p> : null}
        </div>
      </header>
      <div class="chart-legend" />
      <div style={{ height: `${props.height ?? 200}px` }} />
    </section>
  );
}
