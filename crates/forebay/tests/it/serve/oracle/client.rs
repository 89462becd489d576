//! A client of one shape after another: it reads, follows, reconnects, deletes, and checks whatever it is told.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use forebay_testkit::Dice;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::super::support::path;
use super::Ground;
use super::clauses::Wanted;
use super::history::{Row, Sight};
use super::journal::{Journal, Sought};
use super::tables::{self, Rules, Table};
use super::view::{Checkpoint, Counts, View};
use super::wire::{Connection, Head};
use crate::wire::DEADLINE;

/// Of each table, before a run may end.
const UP_TO_DATES: u64 = 20;
const RETRY: Duration = Duration::from_millis(40);
/// Of one stream: a server gives up on a client that doesn't read for half a minute.
const MAX_PAUSES: usize = 3;

/// What all clients share.
pub(crate) struct World {
    pub(crate) server: SocketAddr,
    /// Whether connections may break and the server may be away.
    pub(crate) is_stormy: bool,
    /// Whether logs may be merged.
    pub(crate) is_merged: bool,
    /// Of Postgres.
    pub(crate) version: u32,
    /// Whether the database's collation is ICU's: clauses that depend on it may be refused.
    pub(crate) is_icu: bool,
    /// Of the tables whose definitions change.
    pub(crate) journal: Arc<Journal>,
    ledger: Mutex<Ledger>,
    /// Once the writers have stopped: a client that has seen this is done.
    pub(crate) target: watch::Receiver<Option<Target>>,
}

/// What clients are to see at last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// Of the last commit.
    pub(crate) position: u64,
    /// A client that comes no closer to it for so long is wrong. A busy machine takes longer, but goes on.
    pub(crate) patience: Duration,
}

#[derive(Default)]
pub(crate) struct Ledger {
    /// Handles whose snapshot was complete: they stay.
    complete: HashSet<String>,
    /// Unless somebody asked for that.
    deleted: HashSet<String>,
    pub(crate) breaks: u64,
    pub(crate) refusals: u64,
    pub(crate) refetches: u64,
    /// Streams that ended between two up-to-dates.
    pub(crate) torn: u64,
    /// Shapes that were refused by name.
    pub(crate) unserved: u64,
    /// Up-to-dates of clients, by table.
    up_to_dates: HashMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(
        server: SocketAddr,
        is_stormy: bool,
        is_merged: bool,
        ground: Ground,
        journal: Arc<Journal>,
        target: watch::Receiver<Option<Target>>,
    ) -> Self {
        let Ground { version, is_icu } = ground;
        World { server, is_stormy, is_merged, version, is_icu, journal, ledger: Mutex::default(), target }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    /// Waits until so much has happened that a run proves something: a busy machine takes longer.
    pub(crate) async fn has_much_to_judge(&self) {
        let begun = Instant::now();
        let is_enough = || {
            let ledger = self.ledger();
            let is_seen = |table: &&Table| ledger.up_to_dates.get(table.name) > Some(&UP_TO_DATES);
            ledger.torn > 5 && !ledger.deleted.is_empty() && tables::asked().iter().all(is_seen)
        };
        while !is_enough() && begun.elapsed() < DEADLINE {
            sleep(RETRY).await;
        }
    }

    pub(crate) fn deleted(&self) -> usize {
        self.ledger().deleted.len()
    }
}

/// What a client saw under one handle.
pub(crate) struct Life {
    pub(crate) wanted: Wanted,
    pub(crate) handle: String,
    pub(crate) sight: Sight,
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) counts: Counts,
    pub(crate) columns: Vec<String>,
    /// At the very end.
    pub(crate) rows: Option<BTreeMap<String, Row>>,
    /// Its rows when it ended, in short, and the last messages: for the report of a failure.
    pub(crate) had: String,
    pub(crate) recent: String,
}

impl Life {
    /// As a shape of a table whose definition changes.
    pub(crate) fn sought(&self) -> Sought<'_> {
        sought(&self.wanted, &self.columns)
    }
}

fn sought<'a>(wanted: &Wanted, columns: &'a [String]) -> Sought<'a> {
    Sought { table: wanted.table.name, columns, is_chosen: wanted.is_chosen, below: wanted.below }
}

pub(crate) struct Client<'a> {
    world: &'a World,
    dice: Dice,
    table: Option<&'static Table>,
    is_changing: bool,
    wanted: Wanted,
    view: View,
    handle: Option<String>,
    offset: String,
    cursor: Option<String>,
    is_up_to_date: bool,
    /// How many more times it will be up to date before it does something else.
    patience: usize,
    connection: Option<Connection>,
    was_away: bool,
    /// The last answer that wasn't 200.
    refusal: String,
    lives: Vec<Life>,
    /// How close it came to the target, and when.
    closest: (u64, Instant),
}

/// Why an answer isn't to be used.
enum Trouble {
    /// The connection broke.
    Broken(io::Error),
    /// Between two requests a server may close, and the next one comes too late.
    Stale,
    /// The server is right to refuse; try again.
    Later,
    /// The handle is gone, as it may.
    Refetch,
    /// The shape is refused by name, as it may: another one, then.
    Unserved,
    /// The server is wrong.
    Wrong(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Broken(error)
    }
}

impl From<String> for Trouble {
    fn from(wrong: String) -> Self {
        Trouble::Wrong(wrong)
    }
}

impl<'a> Client<'a> {
    /// `is_changing`: of tables whose definitions change.
    /// `table`: the only one that it asks for; `None`: any.
    pub(crate) fn new(
        world: &'a World,
        mut dice: Dice,
        is_changing: bool,
        table: Option<&'static Table>,
    ) -> Self {
        let wanted = another(&mut dice, world, is_changing, table);
        let view = View::new(&wanted, world.is_merged);
        let mut client = Client {
            world,
            dice,
            table,
            is_changing,
            wanted,
            view,
            handle: None,
            offset: "-1".to_owned(),
            cursor: None,
            is_up_to_date: false,
            patience: 0,
            closest: (0, Instant::now()),
            connection: None,
            was_away: false,
            refusal: "none".to_owned(),
            lives: Vec::new(),
        };
        client.begin();
        client
    }

    /// Until everything is seen, or something is wrong.
    pub(crate) async fn run(mut self) -> Result<Vec<Life>, String> {
        loop {
            if self.has_seen_everything() {
                self.end(true);
                return Ok(self.lives);
            }
            if let Err(late) = self.check_time() {
                return Err(self.describe(&late));
            }
            match self.step().await {
                Ok(()) => {}
                Err(Trouble::Wrong(wrong)) => {
                    let again = self.read_again().await.unwrap_or_else(|error| vec![error.to_string()]);
                    return Err(format!("{}\n read again:\n  {}", self.describe(&wrong), again.join("\n  ")));
                }
                Err(Trouble::Refetch) => {
                    self.world.ledger().refetches += 1;
                    self.end(false);
                    self.begin();
                    self.view.note("refetches".to_owned());
                    if self.is_changing {
                        sleep(RETRY).await;
                    }
                }
                Err(Trouble::Unserved) => {
                    self.world.ledger().unserved += 1;
                    self.end(false);
                    self.wanted = another(&mut self.dice, self.world, self.is_changing, self.table);
                    self.begin();
                }
                Err(Trouble::Broken(error)) => {
                    // A shape that goes breaks the answers that are under way.
                    if !self.world.is_stormy && self.wanted.table.rules == Rules::Strict {
                        return Err(self.describe(&format!("the connection broke: {error}")));
                    }
                    self.world.ledger().breaks += 1;
                    // Whoever reconnects may ask for what is there, or wait at once.
                    self.is_up_to_date &= self.dice.percent(50);
                    sleep(RETRY).await;
                }
                Err(Trouble::Stale) => {}
                Err(Trouble::Later) => {
                    self.world.ledger().refusals += 1;
                    self.view.note("is refused for now".to_owned());
                    sleep(RETRY).await;
                }
            }
        }
    }

    fn has_seen_everything(&self) -> bool {
        if self.is_changing {
            return self.is_up_to_date && self.world.target.borrow().is_some() && self.misses().is_none();
        }
        self.is_up_to_date
            && self.world.target.borrow().is_some_and(|target| self.view.seen > target.position)
    }

    /// What its table has at last, if that isn't what it has.
    fn misses(&self) -> Option<String> {
        let Some(last) = self.world.journal.last(self.wanted.table.name) else {
            return Some("no table".to_owned());
        };
        let rows = last.shape(&sought(&self.wanted, &self.view.columns));
        if rows.as_ref() == Some(&self.view.rows) {
            return None;
        }
        let (columns, has) = (&self.view.columns, listed(&self.view.rows));
        let should = listed(&rows.unwrap_or_default());
        Some(format!("it has {columns:?}:{has}\n  and should have {:?}:{should}", last.columns))
    }

    /// Whether it had all the time that it may take at last.
    fn check_time(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let Some(Target { position, patience }) = *self.world.target.borrow() else {
            self.closest.1 = now;
            return Ok(());
        };
        // Beyond the target, positions move on though nothing happens.
        let seen = self.view.seen.min(position + 1);
        if seen > self.closest.0 {
            self.closest = (seen, now);
        }
        if now - self.closest.1 <= patience {
            return Ok(());
        }
        let what = if self.is_changing { self.misses().unwrap_or_default() } else { String::new() };
        Err(format!("it is at {} and should have seen {position}; {what}", self.view.seen))
    }

    fn begin(&mut self) {
        self.view = View::new(&self.wanted, self.world.is_merged);
        (self.handle, self.offset, self.cursor) = (None, "-1".to_owned(), None);
        self.is_up_to_date = false;
        self.patience = self.dice.between(2, 30);
    }

    fn end(&mut self, is_last: bool) {
        let view = std::mem::replace(&mut self.view, View::new(&self.wanted, self.world.is_merged));
        let recent = view.recent();
        let had = listed(&view.rows);
        self.lives.push(Life {
            wanted: self.wanted.clone(),
            handle: self.handle.take().unwrap_or_default(),
            sight: view.sight,
            checkpoints: view.checkpoints,
            columns: view.columns,
            counts: view.counts,
            rows: is_last.then_some(view.rows),
            had,
            recent,
        });
    }

    fn describe(&self, wrong: &str) -> String {
        let (handle, offset, wanted) =
            (self.handle.as_deref().unwrap_or("no handle"), &self.offset, &self.wanted);
        let (refusal, recent) = (&self.refusal, self.view.recent());
        format!("{wrong}\n at {offset} of {handle}, {wanted:?}\n last refusal: {refusal}\n  {recent}")
    }

    /// What the log has after the offset that was asked for, to tell a wrong log from a wrong delivery.
    async fn read_again(&self) -> io::Result<Vec<String>> {
        let mut connection = Connection::open(self.world.server).await?;
        let query = self.wanted.query();
        let mut params: Vec<_> = query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        params.push(("offset", &self.offset));
        params.extend(self.handle.iter().map(|handle| ("handle", handle.as_str())));
        connection.ask("GET", &path(&params)).await?;
        let head = connection.head().await?;
        let body = connection.body(&head).await?;
        let lines = String::from_utf8_lossy(&body)
            .lines()
            .take(8)
            .map(|line| line.chars().take(400).collect())
            .collect();
        Ok(lines)
    }

    async fn step(&mut self) -> Result<(), Trouble> {
        if self.is_up_to_date && self.patience == 0 && self.world.target.borrow().is_none() {
            self.patience = self.dice.between(2, 30);
            if self.dice.percent(50) && !self.is_changing {
                return self.delete().await;
            }
            self.end(false);
            self.wanted = another(&mut self.dice, self.world, self.is_changing, self.table);
            self.begin();
        }
        self.was_away = self.dice.percent(5) && self.world.target.borrow().is_none();
        if self.was_away {
            // So that there is something to catch up with.
            sleep(Duration::from_millis(self.dice.between(300, 2500) as u64)).await;
        }
        match self.is_up_to_date {
            false => self.page(false).await,
            true if self.is_kept_waiting() || self.dice.percent(50) => self.page(true).await,
            true => self.events().await,
        }
    }

    /// Whether the end is to come and doesn't. An event stream says nothing of changes that don't concern it; a long-poll
    /// says how far it is.
    fn is_kept_waiting(&self) -> bool {
        let target = *self.world.target.borrow();
        target.is_some_and(|target| self.closest.1.elapsed() > target.patience / 4)
    }

    /// Asks, and says whether the answer is one to go on with.
    async fn ask(&mut self, live: &[(&str, &str)]) -> Result<(Connection, Head), Trouble> {
        if self.offset == "-1" {
            // Of an answer that broke off nothing is known.
            self.handle = None;
        }
        let query = self.wanted.query();
        let mut params: Vec<_> = query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        params.push(("offset", &self.offset));
        params.extend(self.handle.iter().map(|handle| ("handle", handle.as_str())));
        params.extend(self.cursor.iter().map(|cursor| ("cursor", cursor.as_str())));
        params.extend(live);
        self.view.note(format!("asks for {} {live:?}", self.offset));
        let path = path(&params);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.world.server).await?,
        };
        if self.dice.percent(2) {
            // Somebody who asks and goes away.
            connection.ask("GET", &path).await?;
            connection = Connection::open(self.world.server).await?;
        }
        let asked = match connection.ask("GET", &path).await {
            Ok(()) => connection.head().await,
            Err(error) => Err(error),
        };
        let head = match asked {
            Ok(head) => head,
            Err(_) if connection.is_used => return Err(Trouble::Stale),
            Err(error) => return Err(error.into()),
        };
        if head.status == 200 {
            self.check_head(&head, !live.is_empty())?;
            return Ok((connection, head));
        }
        let body = connection.body(&head).await?;
        self.refusal = format!("{} {}", head.status, String::from_utf8_lossy(&body));
        Err(self.refused(&head, &body))
    }

    fn check_head(&mut self, head: &Head, is_live: bool) -> Result<(), String> {
        let named = |name: &str| head.header(name).ok_or_else(|| format!("no {name} in {}", head.text));
        let handle = named("electric-handle")?;
        named("electric-offset")?;
        if self.handle.get_or_insert_with(|| handle.to_owned()) != handle {
            return Err(format!("another shape's answer: {}", head.text));
        }
        if !is_live && self.view.columns.is_empty() {
            let columns: Option<Map<String, Value>> = serde_json::from_str(named("electric-schema")?).ok();
            self.view.columns =
                columns.into_iter().flat_map(|columns| columns.into_iter().map(|(name, _)| name)).collect();
            self.view.columns.sort_unstable();
        }
        self.cursor = match is_live {
            true => Some(named("electric-cursor")?.to_owned()),
            false => named("electric-schema").map(|_| None)?,
        };
        Ok(())
    }

    fn refused(&self, head: &Head, body: &[u8]) -> Trouble {
        let told = || format!("{}{}", head.text, String::from_utf8_lossy(body));
        match (head.status, &self.handle) {
            (409, Some(handle)) => {
                let ledger = self.world.ledger();
                let may_go = self.wanted.table.rules != Rules::Strict
                    || !ledger.complete.contains(handle)
                    || ledger.deleted.contains(handle);
                let body: Option<Value> = serde_json::from_slice(body).ok();
                if body != Some(json!([{"headers": {"control": "must-refetch"}}])) {
                    return Trouble::Wrong(format!("409 with another body: {}", told()));
                }
                if head.header("electric-handle") == Some(handle) {
                    return Trouble::Wrong("409 names the handle that is gone".to_owned());
                }
                match may_go {
                    true => Trouble::Refetch,
                    false => Trouble::Wrong(format!("a refetch that nobody asked for: {}", told())),
                }
            }
            // A shape that goes while its first answer is in the making.
            (409, None) if self.world.is_stormy || self.wanted.table.rules != Rules::Strict => Trouble::Later,
            (400, _) if self.may_be_refused(body) => Trouble::Unserved,
            // A table, or a column, that isn't there right now; or a publication that somebody changes.
            (400, _) if self.is_changing => Trouble::Refetch,
            (503, _) if self.is_changing => Trouble::Later,
            // Who asks for a new shape may have to wait for a connection; on a busy machine, for long.
            (503, handle) if self.world.is_stormy || handle.is_none() => Trouble::Later,
            _ => Trouble::Wrong(format!("refused: {}", told())),
        }
    }

    /// What can't be served exactly is refused by name.
    fn may_be_refused(&self, body: &[u8]) -> bool {
        let body = String::from_utf8_lossy(body).to_lowercase();
        let names = |words: &[&str]| words.iter().any(|word| body.contains(word));
        match self.wanted.table.rules {
            Rules::Loose => names(&["primary key", "deferrable", "replica identity"]),
            Rules::Tree | Rules::Mixed if names(&["partition"]) => true,
            _ => self.world.is_icu && names(&["collation", "collate"]),
        }
    }

    /// Everything up to the answer's end: what is there, or, live, what comes.
    async fn page(&mut self, is_live: bool) -> Result<(), Trouble> {
        let live: &[_] = if is_live { &[("live", "true")] } else { &[] };
        let (mut connection, head) = self.ask(live).await?;
        let body = connection.body(&head).await?;
        if head.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        let messages: Vec<Value> = serde_json::from_slice(&body)
            .map_err(|error| format!("{error} in {}", String::from_utf8_lossy(&body)))?;
        for message in &messages {
            self.view.apply(message)?;
        }
        let is_control = |message: &Value| message["headers"]["control"] == "up-to-date";
        let is_up_to_date = head.header("electric-up-to-date").is_some();
        let told = messages.iter().filter(|message| is_control(message)).count();
        if told != usize::from(is_up_to_date) || messages.last().is_some_and(is_control) != is_up_to_date {
            return Err(format!("up-to-date in the head and in the body differ: {}", head.text).into());
        }
        let offset = head.header("electric-offset").unwrap_or_default().to_owned();
        self.check_offset(&offset, is_up_to_date)?;
        self.offset = offset;
        self.is_up_to_date = is_up_to_date;
        if is_up_to_date {
            self.completed();
        }
        Ok(())
    }

    fn check_offset(&self, answered: &str, is_up_to_date: bool) -> Result<(), String> {
        let (asked, answered) = (place(&self.offset)?, place(answered)?);
        let fits = match answered.0 {
            0 if !is_up_to_date => {
                asked.0 == 0 && (self.offset == "-1" && answered.1 == 0 || answered.1 == asked.1 + 1)
            }
            _ if is_up_to_date => {
                answered >= asked && answered >= self.view.at && answered.0 <= self.view.seen
            }
            _ => answered > asked && answered == self.view.at,
        };
        if fits { Ok(()) } else { Err(format!("{answered:?} answers {asked:?}")) }
    }

    /// It has a whole snapshot, and so it is to stay.
    fn completed(&mut self) {
        self.patience = self.patience.saturating_sub(1);
        if let Some(handle) = &self.handle {
            let mut ledger = self.world.ledger();
            ledger.complete.insert(handle.clone());
            *ledger.up_to_dates.entry(self.wanted.table.name).or_default() += 1;
        }
    }

    /// Follows by server-sent events, as the published client does: it takes the head's offset as
    /// its own when the stream
    /// opens, keeps messages back until up-to-date, forgets them when the stream ends before that,
    /// and resumes after an
    /// up-to-date at the position that it names.
    async fn events(&mut self) -> Result<(), Trouble> {
        let mut manner = match self.is_changing {
            true => Manner::prompt(&mut self.dice),
            false => Manner::random(&mut self.dice, self.was_away),
        };
        if manner.is_slow() {
            self.connection = Some(Connection::open_narrow(self.world.server).await?);
        }
        let (mut connection, head) = self.ask(&[("live", "true"), ("live_sse", "true")]).await?;
        if head.header("content-type") != Some("text/event-stream") {
            return Err(format!("no events: {}", head.text).into());
        }
        head.header("electric-offset").unwrap_or_default().clone_into(&mut self.offset);
        self.view.note(format!("the stream opens at {}, {manner:?}", self.offset));
        let (mut unread, mut batch) = (Vec::new(), Vec::new());
        let ended = 'stream: loop {
            let chunk = match connection.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break Ok(()),
                Err(error) => {
                    self.view.note(format!("the stream breaks: {error}, {} bytes unread", unread.len()));
                    // The shape may have gone in the middle of it: the next answer says so.
                    self.world.ledger().breaks += 1;
                    break Ok(());
                }
            };
            unread.extend(chunk);
            while let Some(end) = unread.windows(2).position(|window| window == b"\n\n") {
                let event: Vec<u8> = unread.drain(..end + 2).collect();
                if event == b": keep-alive\n\n" {
                    continue;
                }
                let message =
                    event.strip_prefix(b"data: ").and_then(|json| serde_json::from_slice(json).ok());
                let message: Value =
                    message.ok_or_else(|| format!("no event: {}", String::from_utf8_lossy(&event)))?;
                let is_end = message["headers"]["control"] == "up-to-date";
                batch.push(message);
                if is_end {
                    self.take(&mut batch)?;
                }
                match manner.after_event() {
                    Some(Act::Cut) => break 'stream Ok(()),
                    Some(Act::Pause(time)) => sleep(time).await,
                    None => {}
                }
            }
            self.check_time()?;
            // At last, a stream of a table whose definition changed has to end by itself.
            let stays = self.is_changing && self.world.target.borrow().is_some();
            let leaves = self.patience == 0 || self.dice.percent(2);
            if batch.is_empty() && (self.has_seen_everything() || leaves && !stays) {
                return Ok(());
            }
        };
        self.leave(&batch, manner.keeps)?;
        ended
    }

    /// A stream ended between two up-to-dates. What came since the first is forgotten, as the
    /// published client does, or
    /// kept, as the protocol allows.
    fn leave(&mut self, batch: &[Value], keeps: bool) -> Result<(), String> {
        if batch.is_empty() {
            return Ok(());
        }
        self.world.ledger().torn += 1;
        if !keeps {
            self.view.note(format!("forgets {} messages", batch.len()));
            return Ok(());
        }
        for message in batch {
            self.view.apply(message)?;
        }
        self.offset = format!("{}_{}", self.view.at.0, self.view.at.1);
        self.is_up_to_date = false;
        Ok(())
    }

    /// All messages up to up-to-date.
    fn take(&mut self, batch: &mut Vec<Value>) -> Result<(), String> {
        for message in batch.drain(..) {
            self.view.apply(&message)?;
        }
        self.offset = format!("{}_0", self.view.seen);
        self.completed();
        Ok(())
    }

    /// Asks for the end of its shape; the next answer is to say that it is gone.
    async fn delete(&mut self) -> Result<(), Trouble> {
        let Some(handle) = self.handle.clone() else { return Ok(()) };
        self.world.ledger().deleted.insert(handle.clone());
        let mut connection = Connection::open(self.world.server).await?;
        connection.ask("DELETE", &path(&[("table", self.wanted.table.name), ("handle", &handle)])).await?;
        let head = connection.head().await?;
        match head.status {
            // Another client of the same shape may have been first.
            202 | 404 => Ok(()),
            503 if self.world.is_stormy => Err(Trouble::Later),
            _ => Err(format!("a shape can't be deleted: {}", head.text).into()),
        }
    }
}

fn another(dice: &mut Dice, world: &World, is_changing: bool, table: Option<&'static Table>) -> Wanted {
    if is_changing { Wanted::changing(dice) } else { Wanted::random(dice, world.version, table) }
}

/// Rows by key, with the beginnings of their values, for the report of a failure.
pub(crate) fn listed(rows: &BTreeMap<String, Row>) -> String {
    let value = |value: &Option<String>| match value {
        Some(text) => text.chars().take(24).collect(),
        None => "NULL".to_owned(),
    };
    let line = |row: &Row| row.iter().map(value).collect::<Vec<_>>().join(" | ");
    rows.iter().take(150).map(|(key, row)| format!("\n    {key}: {}", line(row))).collect()
}

/// How a client reads a stream of events.
#[derive(Debug)]
struct Manner {
    /// Goes away after so many events, wherever that is.
    cut_after: Option<usize>,
    /// Reads nothing for a while, each time that so many events have come.
    pauses: Option<(usize, Duration)>,
    /// Whether it keeps what came since the last up-to-date.
    keeps: bool,
    events: usize,
}

enum Act {
    Cut,
    Pause(Duration),
}

impl Manner {
    /// `is_behind`: has much to read; then it more often takes its time.
    fn random(dice: &mut Dice, is_behind: bool) -> Self {
        let cut_after = dice.percent(40).then(|| dice.between(1, 30));
        let pause = Duration::from_millis(dice.between(50, 900) as u64);
        let pauses = dice.percent(if is_behind { 70 } else { 15 }).then(|| (dice.between(1, 20), pause));
        Manner { cut_after, pauses, keeps: dice.percent(20), events: 0 }
    }

    /// Without pauses: when it reads what it is told counts.
    fn prompt(dice: &mut Dice) -> Self {
        Manner { pauses: None, ..Manner::random(dice, false) }
    }

    fn is_slow(&self) -> bool {
        self.pauses.is_some()
    }

    fn after_event(&mut self) -> Option<Act> {
        self.events += 1;
        if self.cut_after == Some(self.events) {
            return Some(Act::Cut);
        }
        let (every, pause) = self.pauses?;
        let is_due = self.events.is_multiple_of(every) && self.events <= MAX_PAUSES * every;
        is_due.then_some(Act::Pause(pause))
    }
}

/// `-1` is before everything, and `inf` after all of its transaction.
fn place(offset: &str) -> Result<(u64, u64), String> {
    if offset == "-1" {
        return Ok((0, 0));
    }
    let op = |op: &str| if op == "inf" { Some(u64::MAX) } else { op.parse().ok() };
    let parts = offset.split_once('_').and_then(|(lsn, rest)| Some((lsn.parse().ok()?, op(rest)?)));
    parts.ok_or_else(|| format!("no offset: {offset}"))
}
