//! Proxy that limits the rate of new connections to a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval};

/// Handle of the proxy. It doesn't limit before [`ConnectThrottle::limit`], and ends with the
/// runtime.
pub(crate) struct ConnectThrottle {
    pub(crate) address: SocketAddr,
    is_limited: Arc<AtomicBool>,
}

impl ConnectThrottle {
    /// Limits the rate from now on. New connections wait in the order of their arrival.
    pub(crate) fn limit(&self) {
        self.is_limited.store(true, Ordering::Relaxed);
    }
}

/// Starts the proxy. Once limited, it passes `per_second` new connections a second to the server.
pub(crate) async fn open(server: SocketAddr, per_second: f64) -> Result<ConnectThrottle> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, is_limited) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
    let limited = is_limited.clone();
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Ok((mut client, _)) = listener.accept().await else { return };
            if limited.load(Ordering::Relaxed) {
                ticks.tick().await;
            }
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(server).await else { return };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    Ok(ConnectThrottle { address, is_limited })
}
