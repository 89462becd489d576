//! Samples of the server's memory and file descriptors during a soak, and the check that both stay
//! flat.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use super::plot::{PlotLine, draw_png};

/// Memory and file descriptors of the server at one moment.
#[derive(Debug, Clone, Copy)]
struct ProcessSample {
    pid: u32,
    /// Anonymous resident memory, in KiB.
    anon_kib: u64,
    /// Number of open file descriptors.
    files: usize,
}

/// One sample for each second.
#[derive(Debug, Default, Clone)]
pub(crate) struct ProcessSamples(Arc<Mutex<Vec<ProcessSample>>>);

impl ProcessSamples {
    /// Takes a sample once a second, until the future is dropped. `pid` returns the id of the
    /// current server process.
    pub(crate) async fn record(&self, pid: impl Fn() -> u32) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            // After a kill there is no process until the next start.
            if let Some(sample) = sample_process(pid()) {
                self.0.lock().push(sample);
            }
        }
    }

    /// Writes a plot, prints a summary, and panics if memory or file descriptors grew.
    pub(crate) fn check_flat(&self, folder: &Path) {
        let samples = self.0.lock().clone();
        let last = samples.last().expect("a soak takes samples").pid;
        let steady: Vec<_> = samples.iter().filter(|sample| sample.pid == last).copied().collect();
        assert!(
            steady.len() >= 20,
            "the last server process ran for only {} s: too short for a verdict",
            steady.len()
        );
        let line = |colour, value: fn(&ProcessSample) -> f64| PlotLine {
            colour,
            values: samples.iter().map(value).collect(),
        };
        let lines = [
            line([35, 90, 200], |sample| sample.anon_kib as f64),
            line([220, 120, 30], |sample| sample.files as f64),
        ];
        let ends =
            (1..samples.len()).filter(|at| samples[*at].pid != samples[at - 1].pid).collect::<Vec<_>>();
        fs::create_dir_all(folder).unwrap();
        let plot = folder.join("soak.png");
        fs::write(&plot, draw_png(&lines, &ends)).unwrap();
        // In the first quarter, caches, tables and the allocator's arenas fill.
        let quarter = steady.len() / 4;
        let (early, late) = (&steady[quarter..2 * quarter], &steady[3 * quarter..]);
        let memory =
            |samples: &[ProcessSample]| median(samples.iter().map(|sample| sample.anon_kib).collect());
        let files =
            |samples: &[ProcessSample]| median(samples.iter().map(|sample| sample.files as u64).collect());
        let (memory, files) = ([memory(early), memory(late)], [files(early), files(late)]);
        eprintln!(
            "memory {} -> {} KiB, file descriptors {} -> {} (medians of the second and the last quarter of {} s); {} server processes; \
             blue is memory, orange descriptors: {}",
            memory[0],
            memory[1],
            files[0],
            files[1],
            steady.len(),
            ends.len() + 1,
            plot.display(),
        );
        assert!(memory[1] <= memory[0] + memory[0] / 4 + 8 * 1024, "memory grows: {memory:?} KiB");
        assert!(files[1] <= files[0] + files[0] / 4 + 50, "descriptors grow: {files:?}");
    }
}

/// Reads `/proc`. `None`: the process has ended.
fn sample_process(pid: u32) -> Option<ProcessSample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let anon = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let anon_kib = anon.trim().trim_end_matches(" kB").parse().ok()?;
    Some(ProcessSample { pid, anon_kib, files: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() })
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
