//! The HTTP server: the page, its API, `/metrics`. It has a thread of its own, which sleeps until
//! somebody asks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
};
use axum::http::{HeaderMap, Response, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use quelea_run::execute;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::{AccessDecision, AccessError, AccessPolicy, PageProtection};
use crate::advice::Adviser;
use crate::folder::{self, FolderError};
use crate::listener::{PageFraming, PageListener, ServeError};
use crate::log::{HistorySubject, RunLog};
use crate::server_thread::ServerThread;
use crate::{assets, health, metrics, record_stream};

/// A client that asked this recently is shown the end of a run before the server ends.
const RECENT: Duration = Duration::from_secs(5);
/// How long the server waits for it.
const FAREWELL: Duration = Duration::from_secs(3);
/// Requests that change something carry this header, which no other site's page can send.
const ACTION_HEADER: &str = "x-quelea-action";
/// What every answer carries beside the policy of its content.
const HEADERS: [(&str, &str); 3] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// What a server shows.
pub enum PageSource {
    /// One run.
    Run(Arc<RunLog>),
    /// All runs of a folder, each opened when it is first asked for.
    Folder(RunFolder),
}

/// Finds an adviser for the run in a folder.
pub type AdviserOf = Box<dyn Fn(&Path) -> Option<Adviser> + Send + Sync>;

/// A folder of runs.
pub struct RunFolder {
    path: PathBuf,
    /// Who gives advice about the run in a folder, if anybody does.
    adviser_of: AdviserOf,
    opened: Mutex<BTreeMap<String, Arc<RunLog>>>,
}

impl RunFolder {
    /// The runs in `path`.
    pub fn new(path: PathBuf, adviser_of: AdviserOf) -> RunFolder {
        RunFolder { path, adviser_of, opened: Mutex::new(BTreeMap::new()) }
    }

    fn log(&self, name: &str) -> Result<Arc<RunLog>, FolderError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = opened.get(name) {
            return Ok(Arc::clone(log));
        }
        // Only what the folder lists: a name is no path.
        let mut listed = folder::runs_of(&self.path).into_iter();
        let path = listed.find(|path| folder::name(path) == name);
        let path = path.ok_or_else(|| FolderError::NoRun { path: PathBuf::from(name) })?;
        let log = folder::open(&path, (self.adviser_of)(&path))?;
        opened.insert(name.to_string(), Arc::clone(&log));
        Ok(log)
    }
}

struct Shared {
    source: RwLock<PageSource>,
    policy: AccessPolicy,
    framing: PageFraming,
    begun: Instant,
    /// Milliseconds after the beginning at which somebody last asked for the state.
    asked: AtomicU64,
}

impl Shared {
    fn new(source: PageSource, policy: AccessPolicy, framing: PageFraming) -> Arc<Shared> {
        let (begun, asked) = (Instant::now(), AtomicU64::new(0));
        Arc::new(Shared { source: RwLock::new(source), policy, framing, begun, asked })
    }
}

/// A running server; it ends when this is dropped.
pub struct PageServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: ServerThread,
}

impl PageServer {
    /// Serves `source` at `address`, protected like this.
    pub fn start(
        address: &str,
        protection: PageProtection,
        source: PageSource,
    ) -> Result<PageServer, ServeError> {
        PageServer::serve(PageListener::bind(address, protection)?, source)
    }

    /// Serves `source` where `listener` listens.
    pub fn serve(listener: PageListener, source: PageSource) -> Result<PageServer, ServeError> {
        let PageListener { listener, address, policy, framing } = listener;
        let failed = |source| ServeError::Bind { address: address.to_string(), source };
        let shared = Shared::new(source, policy, framing);
        let router = router(Arc::clone(&shared));
        let thread = ServerThread::start("quelea-page", listener, router).map_err(failed)?;
        Ok(PageServer { address, shared, thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows another run from now on, in place of what was shown.
    pub fn show(&self, log: Arc<RunLog>) {
        let mut source = self.shared.source.write().unwrap_or_else(PoisonError::into_inner);
        *source = PageSource::Run(log);
    }

    /// Waits until a client that is looking has seen the end, for a few seconds at most; not at all
    /// if nobody looks.
    pub fn farewell(&self) {
        let ended = self.shared.begun.elapsed();
        let asked = || Duration::from_millis(self.shared.asked.load(Ordering::Relaxed));
        if asked().is_zero() || asked() + RECENT < ended {
            return;
        }
        while asked() <= ended && self.shared.begun.elapsed() < ended + FAREWELL {
            std::thread::sleep(Duration::from_millis(20));
        }
        // The answer is on its way to the client.
        std::thread::sleep(Duration::from_millis(100));
    }

    /// Serves until the process is ended.
    pub fn wait(mut self) {
        self.thread.wait();
    }
}

/// The page of one run on loopback, for [`crate::untrusted`].
pub(crate) fn local_router(log: Arc<RunLog>, token: Option<String>) -> Result<Router, AccessError> {
    let protection = PageProtection { token, is_insecure: false };
    let policy = AccessPolicy::new(SocketAddr::from(([127, 0, 0, 1], 8600)), protection)?;
    Ok(router(Shared::new(PageSource::Run(log), policy, PageFraming::Nowhere)))
}

fn router(shared: Arc<Shared>) -> Router {
    let ready = Arc::clone(&shared);
    let health = health::routes(Arc::new(move || ready.is_ready()));
    Router::new()
        .route("/api/runs", get(runs))
        .route("/api/run", get(run_description))
        .route("/api/state", get(state))
        .route("/api/curves", get(curves))
        .route("/api/history", get(history))
        .route("/api/records", get(records))
        .route("/api/act", post(act))
        .route("/metrics", get(prometheus))
        .fallback(asset)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
        // A cluster's probes have no token; they are told nothing about the run.
        .merge(health)
}

/// Judges every request, and puts the headers on every answer.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response<Body> {
    let mut response = match shared.policy.judge(&request) {
        AccessDecision::Granted => next.run(request).await,
        AccessDecision::Answered(response) => *response,
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let policy = HeaderValue::from_static(shared.framing.content_policy());
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    response
}

/// What requests of the API may say.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageQuery {
    /// The run, where there are several.
    run: Option<String>,
    /// The moment.
    t: Option<f64>,
    /// The first record, or the rank at the beginning of a link.
    from: Option<u64>,
    /// The rank at its end.
    to: Option<u32>,
    /// What to do.
    action: Option<String>,
    /// To whom, or of whom.
    rank: Option<u32>,
}

type Asked = (State<Arc<Shared>>, Query<PageQuery>);

/// Runs `answer` with the log that was asked for, where it may take its time.
async fn with_log(
    shared: Arc<Shared>,
    query: PageQuery,
    answer: impl FnOnce(&RunLog, &PageQuery) -> Response<Body> + Send + 'static,
) -> Response<Body> {
    let work = move || match shared.log(&query) {
        Ok(log) => {
            log.visit();
            answer(&log, &query)
        }
        Err(error) => problem(StatusCode::NOT_FOUND, &error.to_string()),
    };
    let answered = tokio::task::spawn_blocking(work).await;
    answered.unwrap_or_else(|_| problem(StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
}

impl Shared {
    fn log(&self, query: &PageQuery) -> Result<Arc<RunLog>, FolderError> {
        match &*self.source() {
            PageSource::Run(log) => Ok(Arc::clone(log)),
            PageSource::Folder(folder) => folder.log(query.run.as_deref().unwrap_or_default()),
        }
    }

    /// Whether the run that is shown has begun; runs of a folder are there.
    fn is_ready(&self) -> bool {
        match &*self.source() {
            PageSource::Run(_) => execute::has_begun(),
            PageSource::Folder(_) => true,
        }
    }

    fn source(&self) -> RwLockReadGuard<'_, PageSource> {
        self.source.read().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn runs(State(shared): State<Arc<Shared>>) -> Response<Body> {
    let work = move || match &*shared.source() {
        PageSource::Run(log) => {
            let about = log.description();
            json!({ "several": false, "runs": [{ "name": about.name }] })
        }
        PageSource::Folder(folder) => {
            let entries = folder::runs_of(&folder.path);
            let entries: Vec<Value> = entries.iter().map(|path| folder::entry_json(path)).collect();
            json!({ "several": true, "folder": folder::name(&folder.path), "runs": entries })
        }
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => json_answer(&value),
        Err(_) => problem(StatusCode::INTERNAL_SERVER_ERROR, "internal error"),
    }
}

async fn run_description((State(shared), Query(query)): Asked) -> Response<Body> {
    with_log(shared, query, |log, _| json_answer(&json!(log.description()))).await
}

async fn state((State(shared), Query(query)): Asked) -> Response<Body> {
    let now = shared.begun.elapsed().as_millis() as u64;
    let asked = Arc::clone(&shared);
    let answered =
        with_log(shared, query, |log, query| json_answer(&log.state_json(query.t))).await;
    asked.asked.store(now.max(1), Ordering::Relaxed);
    answered
}

async fn curves((State(shared), Query(query)): Asked) -> Response<Body> {
    with_log(shared, query, |log, _| json_answer(&log.curves_json())).await
}

async fn history((State(shared), Query(query)): Asked) -> Response<Body> {
    let from = query.from.and_then(|from| u32::try_from(from).ok());
    let subject = match (query.rank, from, query.to) {
        (Some(rank), None, None) => HistorySubject::Rank(rank),
        (None, Some(from), Some(to)) => HistorySubject::Link { from, to },
        _ => return problem(StatusCode::BAD_REQUEST, "ask for `rank`, or for `from` and `to`"),
    };
    with_log(shared, query, move |log, _| json_answer(&log.history_json(subject))).await
}

async fn prometheus((State(shared), Query(query)): Asked) -> Response<Body> {
    let text = |log: &RunLog, _: &PageQuery| {
        answer(StatusCode::OK, metrics::CONTENT_TYPE, metrics::text(log).into_bytes())
    };
    with_log(shared, query, text).await
}

/// `records.jsonl` as server-sent events: those that are kept, then each as it comes. A client that was cut
/// off says in a header which it had last.
async fn records(headers: HeaderMap, (State(shared), Query(query)): Asked) -> Response<Body> {
    let log = match shared.log(&query) {
        Ok(log) => log,
        Err(error) => return problem(StatusCode::NOT_FOUND, &error.to_string()),
    };
    log.visit();
    let resumed = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let first = resumed.or(query.from).unwrap_or(0);
    let mut response = Response::new(record_stream::body(log, first));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn act(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(query): Query<PageQuery>,
) -> Response<Body> {
    if !headers.contains_key(ACTION_HEADER) {
        return problem(StatusCode::FORBIDDEN, "the header x-quelea-action is missing");
    }
    with_log(shared, query, |log, query| {
        let action = query.action.as_deref().unwrap_or_default();
        let Some(controls) = log.controls().filter(|one| one.actions().contains(&action)) else {
            return problem(StatusCode::CONFLICT, "this run does not allow that");
        };
        match controls.act(action, query.rank) {
            Ok(done) => json_answer(&json!({ "done": done })),
            Err(reason) => problem(StatusCode::CONFLICT, &reason),
        }
    })
    .await
}

async fn asset(uri: Uri) -> Response<Body> {
    match assets::find(uri.path()) {
        Some(asset) => answer(StatusCode::OK, asset.content_type, asset.bytes.to_vec()),
        None => problem(StatusCode::NOT_FOUND, "there is no such page"),
    }
}

fn json_answer(value: &Value) -> Response<Body> {
    answer(StatusCode::OK, "application/json", value.to_string().into_bytes())
}

fn problem(status: StatusCode, text: &str) -> Response<Body> {
    let body = json!({ "error": text }).to_string().into_bytes();
    answer(status, "application/json", body)
}

fn answer(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
