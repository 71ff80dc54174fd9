// A page that is read from the disk may not start a worker, and the search is one. Here it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.started = new Promise((resolve) => {
        document.documentElement.append(frame);
        const inside = frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(inside);
        inside.document.documentElement.append(script);
      });
    }

    async postMessage(data) {
      const inside = await this.started;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
  };
}
