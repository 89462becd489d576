//! nginx with nchan: one worker, EventSource subscribers, events published by POST.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, getrlimit, kill_process, set_parent_process_death_signal};

pub(crate) const NAME: &str = "nchan";

const PROGRAM: &str = "/usr/sbin/nginx";
const MODULE: &str = "/usr/lib/nginx/modules/ngx_nchan_module.so";
/// Maximum time from the start until nginx accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// nginx process with its own folder and port. Terminated on drop.
pub(crate) struct Nginx {
    master: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Nginx {
    pub(crate) fn start() -> Result<Nginx> {
        for (file, package) in [(PROGRAM, "nginx"), (MODULE, "libnginx-mod-nchan")] {
            ensure!(Path::new(file).exists(), "{file} is missing: install the Debian package {package}");
        }
        let folder = std::env::temp_dir().join(format!("forebay-races-nginx-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let address = SocketAddr::from(([127, 0, 0, 1], forebay_sandbox::free_port()));
        let config = folder.join("nginx.conf");
        fs::write(&config, configuration(&folder, address))?;
        let mut command = Command::new(PROGRAM);
        command.arg("-c").arg(&config).arg("-p").arg(&folder).stderr(Stdio::null());
        let end_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
        // SAFETY: between fork and exec, the closure makes one async-signal-safe call and allocates
        // nothing.
        unsafe { command.pre_exec(end_with_parent) };
        let master = command.spawn().with_context(|| format!("starting {PROGRAM}"))?;
        let mut nginx = Nginx { master, address, folder };
        nginx.wait_until_up()?;
        Ok(nginx)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the process ids of the master and its worker.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        let master = self.master.id();
        let mut pids = process::children(master)?;
        ensure!(!pids.is_empty(), "nginx has no worker");
        pids.push(master);
        Ok(pids)
    }

    fn wait_until_up(&mut self) -> Result<()> {
        let started = Instant::now();
        // The master listens before it has a worker.
        while TcpStream::connect(self.address).is_err() || process::children(self.master.id())?.is_empty() {
            let log = || fs::read_to_string(self.folder.join("error.log")).unwrap_or_default();
            if let Some(status) = self.master.try_wait()? {
                bail!("nginx ended with {status}: {}", log());
            }
            ensure!(
                started.elapsed() < START_TIMEOUT,
                "nginx doesn't listen after {START_TIMEOUT:?}: {}",
                log()
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let pid = i32::try_from(self.master.id()).ok().and_then(Pid::from_raw);
        // All of these fail only if the process or the folder is gone.
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        let _ = self.master.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the configuration that nchan's manual recommends for many idle subscribers, without logs
/// and pings.
fn configuration(folder: &Path, address: SocketAddr) -> String {
    let folder = folder.display();
    let descriptors = getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(20_000);
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("    {kind}_temp_path {folder}/{kind};\n"))
        .collect();
    format!(
        "load_module {MODULE};
daemon off;
worker_processes 1;
worker_rlimit_nofile {descriptors};
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 16000; use epoll; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_timeout 3600;
    keepalive_requests 1000000;
    nchan_shared_memory_size 64M;
{temporary}    server {{
        listen {address} backlog=4096;
        location = /events {{
            nchan_subscriber eventsource;
            nchan_channel_id race;
            nchan_subscriber_first_message newest;
            nchan_eventsource_ping_interval 0;
        }}
        location = /publish {{
            nchan_publisher;
            nchan_channel_id race;
            nchan_message_buffer_length 16;
        }}
    }}
}}
"
    )
}
